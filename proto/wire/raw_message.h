// A message that came, still in the slices that gRPC read: its small fields for protobuf's own parser, and where the
// bytes of its tensors lie, so that they are copied once, straight to where they are read.
//
// The raw message is split into a skeleton, which is the same message with every `bytes` field's contents replaced by a
// DataExtent of sixteen bytes (nothing stays nothing), and the slices. Protobuf parses the skeleton, and so decides
// everything: fields in any order, parts of a message that merge, the last of repeated data, members of a oneof, what
// is refused. The skeleton's tags and small fields are the bytes that came; only lengths of what is walked into are
// new. What is walked into comes from the message's descriptor: a field of a message type that can hold `bytes`.
// Thread rule: one owner; no locks.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/slice_writer.h"

namespace attnd {

// Where bytes lie within the message that came.
struct DataExtent {
  std::int64_t offset_bytes = 0;
  std::int64_t bytes = 0;
};

// What a `bytes` field of a message from ParseSkeleton says.
DataExtent ExtentOf(const std::string& data);
// The other way.
std::string FieldOf(const DataExtent& extent);

constexpr std::int64_t kNoSkeletonLimit = std::int64_t{1} << 40;

struct DataCopy {
  DataExtent from;
  std::byte* to = nullptr;
};

class RawMessage {
 public:
  // Takes the slices; `buffer` is empty afterwards. `type` is one of the contract's. INVALID_ARGUMENT when the bytes
  // are no message of that type, RESOURCE_EXHAUSTED when more than `skeleton_bytes_max` are not tensor data.
  static absl::StatusOr<RawMessage> Split(grpc::ByteBuffer& buffer, const google::protobuf::Descriptor& type,
                                          std::int64_t skeleton_bytes_max);

  std::int64_t skeleton_bytes() const { return static_cast<std::int64_t>(skeleton_.size()); }

  // `message` is of Split's type. The skeleton is gone afterwards. INVALID_ARGUMENT.
  absl::Status ParseSkeleton(google::protobuf::Message& message);

  // Bytes that came in the same message in another form: what they are from now on, beside the bytes fields.
  DataExtent Append(OwnedBytes data);

  // Copies a part while the slices stay.
  void Read(const DataExtent& from, std::byte* to) const;

  // Hands over what extents of this message name, in the order in which it lies there: each part of extents[index] that
  // lies in one slice, cut anywhere. Each slice is given back when this has passed it, and none is left at the end.
  void TakeOut(const std::vector<DataExtent>& extents,
               absl::FunctionRef<void(std::size_t index, absl::string_view part)> take);

  // Copies them. The slices that are left and the copies are never more than the message and one slice.
  void CopyOut(std::vector<DataCopy> copies);

 private:
  std::vector<grpc::Slice> slices_;
  std::string skeleton_;
};

}  // namespace attnd
