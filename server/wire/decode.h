// What a request says: messages from RawMessage -> ProblemInputs, and each tensor's bytes into a buffer of its own.
//
// A message is refused, with the field, what came and what was expected, when it holds a field or an enum value that
// the contract does not have, at any depth, or a tensor whose dtype, shape and bytes do not agree. What the problem
// means is decided afterwards, by Problem::Create. Thread rule: pure functions.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "attnd/v1/attention.pb.h"
#include "attnd/v1/store.pb.h"
#include "core/buffer.h"
#include "core/problem.h"
#include "proto/wire/raw_message.h"

namespace attnd::server {

// What a tensor's `data` must be.
enum class DataRule {
  kWhole,         // Attend: every byte
  kWholeOrLater,  // AttendStream's header: every byte, or none and they follow in pieces
  kNone,          // Plan
};

// No unknown field and no unknown enum value, at any depth.
absl::Status CheckKnown(const google::protobuf::Message& message);

// The same for the message's own fields alone, not for what they hold.
absl::Status CheckKnownFields(const google::protobuf::Message& message);

// What a message of a stream is about, found without parsing it: protobuf writers put the id first. 0 and false when it
// is not.
struct StreamMessagePeek {
  std::uint64_t problem_id = 0;
  bool is_header = false;
};
StreamMessagePeek PeekStreamMessage(const grpc::ByteBuffer& buffer);

// What keeps the bytes that a problem reads and that are not its own.
using Held = std::vector<std::shared_ptr<const void>>;

// What a caller may name instead of carrying it.
class Names {
 public:
  virtual ~Names() = default;
  // The tensor of this name as it is now, with its address; `held` gets what keeps it. NOT_FOUND, INVALID_ARGUMENT, in
  // words that follow the field's name.
  virtual absl::StatusOr<InputTensor> Tensor(absl::string_view name, Held& held) = 0;
};

struct TensorExtent {
  absl::string_view path;  // as ForEachTensor says it
  DataExtent extent;
};

// Depends on nothing of the message. The data of a tensor without a name is null, or an address without bytes where it
// has no elements.
struct DecodedProblem {
  ProblemInputs inputs;
  std::vector<TensorExtent> came;  // the tensors whose bytes are in the message
  Held held;                       // for as long as `inputs` is used
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;
};

// `request` is from RawMessage::ParseSkeleton. Calls CheckKnown. NOT_FOUND of `names`, without which nothing is named.
absl::StatusOr<DecodedProblem> DecodeProblem(const v1::AttendRequest& request, DataRule rule, Names* names = nullptr);

// One tensor that stands alone, of a message that CheckKnown accepted, by the same rules and under `path` in errors.
// The bytes that came with it are ExtentOf(tensor.data()).
absl::StatusOr<InputTensor> DecodeTensor(const v1::Tensor& tensor, absl::string_view path, DataRule rule);

// Weights that come to stay, with their rotary embedding.
struct DecodedWeights {
  ProjectionInputs projection;
  std::optional<RotaryInputs> rotary;
  std::vector<TensorExtent> came;
  Held held;  // as of a DecodedProblem
};

// `request` is from RawMessage::ParseSkeleton. Calls CheckKnown. NOT_FOUND of `names`.
absl::StatusOr<DecodedWeights> DecodeWeights(const v1::PutWeightSetRequest& request, Names* names = nullptr);

// Every tensor that came, under the path that pieces name it by: "q", "projection.w_q", "options.rotary.q_positions".
void ForEachTensor(ProblemInputs& inputs, absl::FunctionRef<void(absl::string_view path, InputTensor& tensor)> visit);

// Bytes of a tensor that DecodeProblem accepted.
std::int64_t TensorBytes(const InputTensor& tensor);

// Copies what `came` of `inputs`, points the tensors at the copies and gives the slices of `raw` back.
std::vector<AlignedBuffer<std::byte>> CopyTensors(RawMessage& raw, const std::vector<TensorExtent>& came,
                                                  ProblemInputs& inputs);

}  // namespace attnd::server
