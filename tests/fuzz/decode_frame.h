// What fuzzers of requests share: messages cut into slices and read, held to stock protobuf's answer, and problems that
// were decoded taken as far as is cheap. Thread rule: one fuzzer, one thread.
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/status/statusor.h"
#include "core/attention.h"
#include "core/cost.h"
#include "proto/wire/raw_message.h"
#include "server/wire/decode.h"
#include "tests/proto/messages.h"

namespace attnd {

constexpr ProblemLimits kFuzzLimits = {1 << 12, 1 << 16};
constexpr std::int64_t kTinyFlops = 1 << 16;
constexpr std::int64_t kTinyBytes = 1 << 20;

inline void Check(bool holds) {
  if (!holds) std::abort();
}

inline Executor& Pool() {
  static Executor* pool = new Executor(1);
  return *pool;
}

inline absl::StatusOr<RawMessage> Read(const std::string& bytes, google::protobuf::Message& message) {
  // Slices of 1 to 64 bytes by the bytes themselves.
  std::size_t at = 0;
  const auto next_size = [&] { return 1 + static_cast<std::uint8_t>(bytes[at++ % bytes.size()]) % 64; };
  grpc::ByteBuffer buffer = CutIntoSlices(bytes, next_size);
  absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *message.GetDescriptor(), kNoSkeletonLimit);
  if (!raw.ok()) return raw.status();
  if (absl::Status status = raw->ParseSkeleton(message); !status.ok()) return status;
  return raw;
}

// The message's bytes, with maps in order.
inline std::string InOrder(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.SetSerializationDeterministic(true);
  Check(message.SerializeToCodedStream(&out));
  out.Trim();
  return bytes;
}

// True when the bytes are such a message.
template <typename Message>
bool CompareWithStock(const std::string& bytes) {
  Message stock, message;
  const bool taken = stock.ParseFromString(bytes);
  absl::StatusOr<RawMessage> raw = Read(bytes, message);
  Check(raw.ok() == taken);
  if (!taken) return false;
  Rejoin(message, *raw);
  Check(InOrder(message) == InOrder(stock));
  return true;
}

// A server that keeps two tensors: `t`, and `r`, which has room for more rows.
class FuzzNames final : public server::Names {
 public:
  absl::StatusOr<InputTensor> Tensor(absl::string_view name, server::Held&) override {
    static constexpr float kValues[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    if (name != "t" && name != "r") return absl::NotFoundError("no such tensor");
    InputTensor tensor{DType::kFloat32, {1, 1, 2, 2}, reinterpret_cast<const std::byte*>(kValues), /*shared=*/true};
    if (name == "r") tensor.room = {1, 1, 4, 2};
    return tensor;
  }
};

// A request that was read: refused in words, or understood, and computed where it is tiny and whole.
inline void Decode(const v1::AttendRequest& request, RawMessage& raw, server::DataRule rule) {
  FuzzNames names;
  absl::StatusOr<server::DecodedProblem> decoded = server::DecodeProblem(request, rule, &names);
  if (!decoded.ok()) return Check(absl::IsInvalidArgument(decoded.status()) || absl::IsNotFound(decoded.status()));
  const auto tensors = server::CopyTensors(raw, decoded->came, decoded->inputs);
  const absl::StatusOr<Problem> problem = Problem::Create(decoded->inputs, kFuzzLimits);
  if (!problem.ok()) return Check(problem.status().code() != absl::StatusCode::kInternal);
  const absl::StatusOr<Cost> cost = EstimateCost(*problem);
  if (!cost.ok()) return Check(cost.status().code() == absl::StatusCode::kInvalidArgument);
  Check(cost->flops >= 0 && cost->reply_bytes >= 0 && cost->flops_after_exclusion <= cost->flops);
  if (rule != server::DataRule::kWhole || cost->flops > kTinyFlops || cost->reply_bytes > kTinyBytes) return;
  if (!problem->CheckContents().ok()) return;
  Check(Attend(*problem, Pool()).ok());
}

}  // namespace attnd
