#include "server/inference/encode.h"

#include <algorithm>

#include "inference/inference.pb.h"
#include "server/inference/fields.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

inference::ModelInferResponse HeadOf(const InferHead& head) {
  inference::ModelInferResponse response;
  response.set_model_name(head.model_name);
  response.set_model_version(head.model_version);
  response.set_id(head.id);
  return response;
}

}  // namespace

grpc::ByteBuffer EncodeInferResponse(const InferHead& head, const Problem& problem,
                                     const std::vector<OutputKind>& replied, const std::vector<NamedOutput>& outputs) {
  inference::ModelInferResponse response = HeadOf(head);
  std::vector<OwnedBytes> contents;
  for (const OutputKind kind : replied) {
    inference::ModelInferResponse::InferOutputTensor& tensor = *response.add_outputs();
    tensor.set_name(OutputName(kind));
    tensor.set_datatype(std::string(DataTypeName(problem.OutputDType(kind))));
    for (const std::int64_t size : problem.ReplyShape(kind)) tensor.add_shape(size);
    contents.push_back(std::find_if(outputs.begin(), outputs.end(), [kind](const NamedOutput& output) {
                         return output.kind == kind;
                       })->data);
  }
  SliceWriter writer;
  writer.Append(response.SerializeAsString());
  for (OwnedBytes& data : contents) {
    writer.Append(
        FieldHead(inference::ModelInferResponse::kRawOutputContentsFieldNumber, static_cast<std::size_t>(data.bytes)));
    writer.Append(std::move(data));
  }
  return writer.Finish();
}

grpc::ByteBuffer EncodeStreamAnswer(const grpc::ByteBuffer& response) {
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) slices.clear();  // it has no slices only where it has no bytes
  slices.insert(slices.begin(), grpc::Slice(FieldHead(inference::ModelStreamInferResponse::kInferResponseFieldNumber,
                                                      response.Length())));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer EncodeStreamError(const InferHead& head, const absl::Status& status) {
  const grpc::Status error = ToGrpcStatus(status);
  inference::ModelStreamInferResponse response;
  response.set_error_message(error.error_message());
  *response.mutable_infer_response() = HeadOf(head);
  (*response.mutable_infer_response()->mutable_parameters())["status"].set_string_param(
      absl::StatusCodeToString(status.code()));
  return EncodeMessage(response);
}

}  // namespace attnd::server
