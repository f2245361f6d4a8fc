#include "client/cli/bench/kserve.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/reflection.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "inference/inference.pb.h"

namespace attnd::client {

namespace {

using google::protobuf::FieldDescriptor;
using inference::ModelInferRequest;

absl::StatusOr<std::string> DataTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "FP32";
    case DType::kFloat16: return "FP16";
    case DType::kBFloat16: return "BF16";
    case DType::kFloat64: return "FP64";
    case DType::kInt64: return "INT64";
    case DType::kBool: return "BOOL";
  }
  return absl::InvalidArgumentError("dtype: it has no name in this protocol");
}

absl::Status AddInput(const std::string& name, const v1::Tensor& tensor, ModelInferRequest* request) {
  const absl::StatusOr<std::string> datatype = DataTypeOf(static_cast<DType>(tensor.dtype()));
  if (!datatype.ok()) return datatype.status();
  ModelInferRequest::InferInputTensor& input = *request->add_inputs();
  input.set_name(name);
  input.set_datatype(*datatype);
  *input.mutable_shape() = tensor.shape();
  request->add_raw_input_contents(tensor.data());
  return absl::OkStatus();
}

// A list of numbers as a tensor of rank 1.
template <typename T>
v1::Tensor ListOf(const v1::Options& options, const FieldDescriptor* field) {
  const auto values = options.GetReflection()->GetRepeatedFieldRef<T>(options, field);
  Array array = *Array::Zeros(std::is_integral_v<T> ? DType::kInt64 : DType::kFloat32, {values.size()});
  std::int64_t at = 0;
  for (const T value : values) array.Set(at++, static_cast<double>(value));
  return ToTensor(std::move(array));
}

// An option that is set, under its own name.
absl::Status AddOption(const v1::Options& options, const FieldDescriptor* field, ModelInferRequest* request) {
  const google::protobuf::Reflection& reflection = *options.GetReflection();
  if (field->is_repeated()) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      return AddInput(field->name(), ListOf<std::int64_t>(options, field), request);
    }
    return AddInput(field->name(), ListOf<float>(options, field), request);
  }
  if (field->message_type() == v1::Tensor::descriptor()) {
    return AddInput(field->name(), dynamic_cast<const v1::Tensor&>(reflection.GetMessage(options, field)), request);
  }
  inference::InferParameter& parameter = (*request->mutable_parameters())[field->name()];
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: parameter.set_bool_param(reflection.GetBool(options, field)); break;
    case FieldDescriptor::CPPTYPE_INT64: parameter.set_int64_param(reflection.GetInt64(options, field)); break;
    case FieldDescriptor::CPPTYPE_DOUBLE: parameter.set_double_param(reflection.GetDouble(options, field)); break;
    case FieldDescriptor::CPPTYPE_ENUM: parameter.set_string_param(reflection.GetEnum(options, field)->name()); break;
    default: return absl::InvalidArgumentError(absl::StrCat(field->name(), ": not with --protocol kserve"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<grpc::ByteBuffer> EncodeModelInfer(const Problem& problem, const std::string& model) {
  const v1::AttendRequest& native = problem.request();
  ModelInferRequest request;
  request.set_model_name(model);
  request.add_outputs()->set_name("output");
  absl::Status status = AddInput("q", native.q(), &request);
  status.Update(AddInput("k", native.k(), &request));
  status.Update(AddInput("v", native.v(), &request));
  std::vector<const FieldDescriptor*> set;
  native.options().GetReflection()->ListFields(native.options(), &set);
  for (const FieldDescriptor* field : set) status.Update(AddOption(native.options(), field, &request));
  if (!status.ok()) return status;
  grpc::ByteBuffer message;
  bool own = false;
  const grpc::Status written =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, ModelInferRequest>(request, &message, &own);
  if (!written.ok()) return absl::InvalidArgumentError(written.error_message());
  return message;
}

absl::StatusOr<std::int64_t> ModelOutputBytes(const grpc::ByteBuffer& reply) {
  inference::ModelInferResponse response;
  grpc::ByteBuffer buffer = reply;
  if (!grpc::GenericDeserialize<grpc::ProtoBufferReader, inference::ModelInferResponse>(&buffer, &response).ok()) {
    return absl::InternalError("the server's reply is no ModelInferResponse");
  }
  for (int i = 0; i < response.outputs_size(); ++i) {
    if (response.outputs(i).name() != "output") continue;
    if (i < response.raw_output_contents_size()) {
      return static_cast<std::int64_t>(response.raw_output_contents(i).size());
    }
    return response.outputs(i).contents().fp32_contents_size() * std::int64_t{4};
  }
  return absl::InternalError("the server left out output");
}

}  // namespace attnd::client
