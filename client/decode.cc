#include "client/decode.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace attnd::client {

absl::StatusOr<RawMessage> SplitReply(grpc::ByteBuffer& buffer, google::protobuf::Message& reply) {
  absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *reply.GetDescriptor(), kNoSkeletonLimit);
  if (raw.ok() && raw->ParseSkeleton(reply).ok()) return raw;
  return absl::InternalError(absl::StrCat("the server sent no valid ", reply.GetDescriptor()->full_name()));
}

absl::StatusOr<Answer> DecodeAnswer(const Problem& problem, grpc::ByteBuffer& buffer) {
  v1::AttendResponse response;
  absl::StatusOr<RawMessage> raw = SplitReply(buffer, response);
  if (!raw.ok()) return raw.status();
  Answer answer;
  std::vector<DataExtent> extents;
  std::vector<ArrayWriter> writers;
  // Gives `to` all but its bytes, and a writer of those.
  const auto open = [&](v1::OutputKind kind, const v1::Tensor& tensor, Array& to) -> absl::Status {
    extents.push_back(ExtentOf(tensor.data()));
    absl::StatusOr<Array> head = ToArrayHead(tensor, extents.back().bytes);
    if (!head.ok()) return head.status();
    const DType sent = head->dtype;
    absl::StatusOr<std::vector<std::int64_t>> shape = problem.InCallersRank(kind, head->shape);
    if (!shape.ok()) return shape.status();
    to.dtype = problem.AnswerDType(kind, sent);
    if (to.dtype != sent && !IsFloat(sent)) {
      return absl::InternalError(absl::StrCat("the server answered ", Name(kind), " as ", Name(sent)));
    }
    to.shape = *std::move(shape);
    const std::int64_t elements = extents.back().bytes / ElementBytes(sent);
    to.bytes.reserve(static_cast<std::size_t>(elements * ElementBytes(to.dtype)));
    writers.emplace_back(sent, to, 0, elements, 0);
    return absl::OkStatus();
  };
  absl::Status status = open(v1::OUTPUT_KIND_OUTPUT, response.output(), answer.output);
  answer.extras.reserve(static_cast<std::size_t>(response.extras_size()));  // so that arrays stay where they are
  for (int i = 0; i < response.extras_size() && status.ok(); ++i) {
    const v1::NamedTensor& extra = response.extras(i);
    answer.extras.emplace_back(extra.kind(), Array());
    status = open(extra.kind(), extra.tensor(), answer.extras.back().second);
  }
  if (!status.ok()) return status;
  raw->TakeOut(extents, [&](std::size_t index, absl::string_view part) { writers[index].Take(part); });
  answer.statistics = response.statistics();
  return answer;
}

}  // namespace attnd::client
