// The only writer of requests. Protobuf's own serialiser writes every byte but those of large tensors, which become
// slices over the request's memory: it must not change while a message lives, and each slice keeps it alive.
// Thread rule: pure functions.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "attnd/v1/attention.pb.h"
#include "client/problem.h"

namespace attnd::client {

using SharedRequest = std::shared_ptr<const v1::AttendRequest>;

// The request as Attend takes it.
grpc::ByteBuffer EncodeAttend(const SharedRequest& request);

// The message that opens a problem of a stream.
grpc::ByteBuffer EncodeHeader(std::uint64_t problem_id, const SharedRequest& header);

// `bytes` bytes of `data` from `offset_bytes` on, which is a tensor of `request`.
grpc::ByteBuffer EncodePiece(std::uint64_t problem_id, const std::string& tensor, const std::string& data,
                             std::int64_t offset_bytes, std::int64_t bytes, const SharedRequest& request);

// A problem as a stream carries it: whole in its header when its tensors have no more than piece_bytes, otherwise with
// their bytes in pieces of so many after it.
class StreamParts {
 public:
  StreamParts() = default;
  StreamParts(const Problem& problem, std::int64_t piece_bytes);

  bool whole() const { return tensors_.empty(); }
  // Hands over each message with the tensor bytes in it, the header's counted as none, until `take` returns false.
  void Encode(std::uint64_t problem_id,
              absl::FunctionRef<bool(const grpc::ByteBuffer& message, std::int64_t piece_bytes)> take) const;

 private:
  std::int64_t piece_bytes_ = 1;
  SharedRequest request_;  // what pieces point into
  SharedRequest header_;
  std::vector<std::pair<std::string, const std::string*>> tensors_;  // that go in pieces, in that order
};

}  // namespace attnd::client
