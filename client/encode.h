// The only writer of requests. Protobuf's own serialiser writes every byte but those of large tensors, which become
// slices over the request's memory: it must not change while a message lives, and each slice keeps it alive.
// Thread rule: pure functions.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <string>

#include "attnd/v1/attention.pb.h"

namespace attnd::client {

using SharedRequest = std::shared_ptr<const v1::AttendRequest>;

// The request as Attend takes it.
grpc::ByteBuffer EncodeAttend(const SharedRequest& request);

// The message that opens a problem of a stream.
grpc::ByteBuffer EncodeHeader(std::uint64_t problem_id, const SharedRequest& header);

// `bytes` bytes of `data` from `offset_bytes` on, which is a tensor of `request`.
grpc::ByteBuffer EncodePiece(std::uint64_t problem_id, const std::string& tensor, const std::string& data,
                             std::int64_t offset_bytes, std::int64_t bytes, const SharedRequest& request);

}  // namespace attnd::client
