// A server's replies under arbitrary bytes, as Attend's answer and as messages of a stream, to one problem. An answer
// is taken with the very bytes that stock protobuf finds in it, or it is INTERNAL; a block is placed inside its tensor,
// or it is INTERNAL.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "attnd/v1/attention.pb.h"
#include "client/decode.h"
#include "client/join.h"
#include "client/problem.h"
#include "tests/proto/messages.h"

namespace {

using attnd::client::Answer;
using attnd::client::Array;
using attnd::client::DType;
using attnd::client::Problem;

void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "reply_fuzz: %s\n", what.c_str());
  std::abort();
}

void CheckRefusal(const absl::Status& status) { Check(absl::IsInternal(status), status.ToString()); }

grpc::ByteBuffer Slices(const std::string& bytes) {
  std::size_t at = 0;
  return attnd::CutIntoSlices(bytes, [&] { return 1 + static_cast<std::uint8_t>(bytes[at++ % bytes.size()]) % 64; });
}

Problem OneProblem() {
  Problem problem =
      *Problem::FromQkv(*Array::Zeros(DType::kFloat32, {1, 2, 3, 2}), *Array::Zeros(DType::kFloat32, {1, 1, 4, 2}),
                        *Array::Zeros(DType::kFloat32, {1, 1, 4, 2}));
  problem.Want(attnd::v1::OUTPUT_KIND_WEIGHTS);
  problem.Want(attnd::v1::OUTPUT_KIND_LSE);
  return problem;
}

void Unary(const Problem& problem, const std::string& bytes) {
  grpc::ByteBuffer buffer = Slices(bytes);
  const absl::StatusOr<Answer> answer = attnd::client::DecodeAnswer(problem, buffer);
  if (!answer.ok()) return CheckRefusal(answer.status());
  attnd::v1::AttendResponse stock;
  Check(stock.ParseFromString(bytes), "taken, although protobuf refuses it");
  // The problem's arrays are float32, to which narrower outputs are widened.
  if (stock.output().dtype() == attnd::v1::DATA_TYPE_FLOAT32) {
    Check(answer->output.bytes == stock.output().data(), "other bytes of the output than protobuf finds");
  }
  Check(static_cast<int>(answer->extras.size()) == stock.extras_size(), "other outputs than protobuf finds");
}

void Stream(const Problem& problem, const std::string& bytes) {
  attnd::v1::AttendStreamResponse stock, message;
  const bool taken = stock.ParseFromString(bytes);
  grpc::ByteBuffer buffer = Slices(bytes);
  absl::StatusOr<attnd::RawMessage> raw = attnd::client::SplitReply(buffer, message);
  Check(raw.ok() == taken, "not what protobuf says");
  if (!raw.ok()) return CheckRefusal(raw.status());
  attnd::client::BlockPlacer placer(problem);
  if (message.has_closing()) {
    const absl::Status complete = placer.CheckComplete(message.closing());
    return complete.ok() ? void() : CheckRefusal(complete);
  }
  const attnd::v1::Block& block = message.block();
  const std::int64_t data_bytes = static_cast<std::int64_t>(stock.block().data().size());
  const absl::StatusOr<attnd::client::BlockPlace> place = placer.Place(block, data_bytes);
  if (!place.ok()) return CheckRefusal(place.status());
  std::int64_t elements = 1;
  for (const std::int64_t size : place->layout->shape) elements *= size;
  const std::int64_t last = place->first + (block.rows() - 1) * place->row_stride + block.columns() - 1;
  Check(place->first >= 0 && last >= place->first && last < elements, "a block beyond its tensor");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const google::protobuf::LogSilencer silence;
  static const auto* const problem = new Problem(OneProblem());
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  Unary(*problem, bytes);
  Stream(*problem, bytes);
  return 0;
}
