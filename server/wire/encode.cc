#include "server/wire/encode.h"

#include <string>
#include <utility>

#include "server/wire/status.h"

namespace attnd::server {
namespace {

// A Tensor up to its data's bytes. data = 3
std::string TensorHead(const Problem& problem, const NamedOutput& output) {
  v1::Tensor tensor;
  tensor.set_dtype(ToWire(problem.OutputDType(output.kind)));
  for (const std::int64_t size : problem.ReplyShape(output.kind)) tensor.add_shape(size);
  std::string head = tensor.SerializeAsString();
  if (output.data.bytes > 0) head += FieldHead(3, static_cast<std::size_t>(output.data.bytes));
  return head;
}

}  // namespace

grpc::ByteBuffer EncodeAttendResponse(const Problem& problem, const std::vector<NamedOutput>& outputs,
                                      const v1::Statistics& statistics) {
  SliceWriter writer;
  for (const NamedOutput& output : outputs) {
    const std::string tensor_head = TensorHead(problem, output);
    const std::size_t tensor_bytes = tensor_head.size() + static_cast<std::size_t>(output.data.bytes);
    if (output.kind == OutputKind::kOutput) {
      writer.Append(FieldHead(1, tensor_bytes));
    } else {
      v1::NamedTensor named;  // kind = 1, tensor = 2
      named.set_kind(ToWire(output.kind));
      const std::string named_head = named.SerializeAsString() + FieldHead(2, tensor_bytes);
      writer.Append(FieldHead(2, named_head.size() + tensor_bytes));
      writer.Append(named_head);
    }
    writer.Append(tensor_head);
    writer.Append(output.data);
  }
  const std::string tail = statistics.SerializeAsString();
  writer.Append(FieldHead(3, tail.size()));
  writer.Append(tail);
  return writer.Finish();
}

grpc::ByteBuffer EncodeBlock(std::uint64_t problem_id, const v1::Block& head, OwnedBytes data) {
  // Block: data = 9
  std::string block = head.SerializeAsString();
  const auto data_bytes = static_cast<std::size_t>(data.bytes);
  block += FieldHead(9, data_bytes);
  v1::AttendStreamResponse response;
  response.set_problem_id(problem_id);
  SliceWriter writer;
  writer.Append(response.SerializeAsString());
  writer.Append(FieldHead(2, block.size() + data_bytes));
  writer.Append(block);
  writer.Append(std::move(data));
  return writer.Finish();
}

grpc::ByteBuffer EncodeClosing(std::uint64_t problem_id, const absl::Status& status, v1::ProblemClosing closing) {
  v1::AttendStreamResponse response;
  response.set_problem_id(problem_id);
  *response.mutable_closing() = std::move(closing);
  if (!status.ok()) {
    const grpc::Status error = ToGrpcStatus(status);
    response.mutable_closing()->mutable_error()->set_code(error.error_code());
    response.mutable_closing()->mutable_error()->set_message(error.error_message());
  }
  return EncodeMessage(response);
}

grpc::ByteBuffer EncodeMessage(const google::protobuf::Message& message) {
  SliceWriter writer;
  writer.Append(message.SerializeAsString());
  return writer.Finish();
}

v1::DataType ToWire(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return v1::DATA_TYPE_FLOAT32;
    case DType::kFloat16: return v1::DATA_TYPE_FLOAT16;
    case DType::kBFloat16: return v1::DATA_TYPE_BFLOAT16;
    case DType::kFloat64: return v1::DATA_TYPE_FLOAT64;
    case DType::kBool: return v1::DATA_TYPE_BOOL;
    case DType::kInt64: return v1::DATA_TYPE_INT64;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

v1::OutputKind ToWire(OutputKind kind) { return static_cast<v1::OutputKind>(kind); }

std::vector<OutputKind> ReplyOrder(const Problem& problem) {
  std::vector<OutputKind> order;
  order.reserve(problem.extras.size() + 1);
  order.push_back(OutputKind::kOutput);
  for (const OutputKind kind : problem.extras) order.push_back(kind);
  return order;
}

void AddOutputShapes(const Problem& problem, v1::ProblemClosing& closing) {
  for (const OutputKind kind : ReplyOrder(problem)) {
    v1::OutputShape& shape = *closing.add_outputs();
    shape.set_kind(ToWire(kind));
    shape.set_dtype(ToWire(problem.OutputDType(kind)));
    for (const std::int64_t size : problem.OutputShape(kind)) shape.add_shape(size);
  }
}

}  // namespace attnd::server
