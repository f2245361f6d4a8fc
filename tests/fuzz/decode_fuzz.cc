// The reader of requests under arbitrary bytes. Cut into slices, they are taken or refused as stock protobuf does, with
// the same contents; then decode -> Problem::Create -> EstimateCost, by each of the three rules for tensor data; a
// problem that turns out tiny is computed too. Nothing may crash, and no refusal may be INTERNAL.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "attnd/v1/attention.pb.h"
#include "core/attention.h"
#include "core/cost.h"
#include "proto/wire/raw_message.h"
#include "server/wire/decode.h"
#include "tests/proto/messages.h"

namespace {

using attnd::RawMessage;
using attnd::server::DataRule;

constexpr attnd::ProblemLimits kLimits = {1 << 12, 1 << 16};
constexpr std::int64_t kTinyFlops = 1 << 16;
constexpr std::int64_t kTinyBytes = 1 << 20;

void Check(bool holds) {
  if (!holds) std::abort();
}

attnd::Executor& Pool() {
  static attnd::Executor* pool = new attnd::Executor(1);
  return *pool;
}

absl::StatusOr<RawMessage> Read(const std::string& bytes, google::protobuf::Message& message) {
  // Slices of 1 to 64 bytes by the bytes themselves.
  std::size_t at = 0;
  const auto next_size = [&] { return 1 + static_cast<std::uint8_t>(bytes[at++ % bytes.size()]) % 64; };
  grpc::ByteBuffer buffer = attnd::CutIntoSlices(bytes, next_size);
  absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *message.GetDescriptor(), attnd::kNoSkeletonLimit);
  if (!raw.ok()) return raw.status();
  if (absl::Status status = raw->ParseSkeleton(message); !status.ok()) return status;
  return raw;
}

// True when the bytes are such a message.
template <typename Message>
bool CompareWithStock(const std::string& bytes) {
  Message stock, message;
  const bool taken = stock.ParseFromString(bytes);
  absl::StatusOr<RawMessage> raw = Read(bytes, message);
  Check(raw.ok() == taken);
  if (!taken) return false;
  attnd::Rejoin(message, *raw);
  Check(message.SerializeAsString() == stock.SerializeAsString());
  return true;
}

void Decode(const std::string& bytes, DataRule rule) {
  attnd::v1::AttendRequest request;
  absl::StatusOr<RawMessage> raw = Read(bytes, request);
  absl::StatusOr<attnd::server::DecodedProblem> decoded = attnd::server::DecodeProblem(request, rule);
  if (!decoded.ok()) return Check(decoded.status().code() == absl::StatusCode::kInvalidArgument);
  const auto tensors = attnd::server::CopyTensors(*raw, decoded->came, decoded->inputs);
  const absl::StatusOr<attnd::Problem> problem = attnd::Problem::Create(decoded->inputs, kLimits);
  if (!problem.ok()) return Check(problem.status().code() != absl::StatusCode::kInternal);
  const absl::StatusOr<attnd::Cost> cost = attnd::EstimateCost(*problem);
  if (!cost.ok()) return Check(cost.status().code() == absl::StatusCode::kInvalidArgument);
  Check(cost->flops >= 0 && cost->reply_bytes >= 0 && cost->flops_after_exclusion <= cost->flops);
  if (rule != DataRule::kWhole || cost->flops > kTinyFlops || cost->reply_bytes > kTinyBytes) return;
  if (!problem->CheckContents().ok()) return;
  Check(attnd::Attend(*problem, Pool()).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const google::protobuf::LogSilencer silence;  // protobuf writes of each string that is not UTF-8
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  CompareWithStock<attnd::v1::AttendStreamRequest>(bytes);
  if (!CompareWithStock<attnd::v1::AttendRequest>(bytes)) return 0;
  for (const DataRule rule : {DataRule::kWhole, DataRule::kWholeOrLater, DataRule::kNone}) Decode(bytes, rule);
  return 0;
}
