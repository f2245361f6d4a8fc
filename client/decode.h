// The only reader of replies: out of the slices that gRPC read, tensor bytes are copied once, to their arrays. Bytes
// that are no reply, or that contradict themselves, are INTERNAL: they come from a server. Thread rule: pure functions.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/problem.h"
#include "proto/wire/raw_message.h"

namespace attnd::client {

// Fills `reply`, whose `bytes` fields are DataExtents into the result, and empties `buffer`.
absl::StatusOr<RawMessage> SplitReply(grpc::ByteBuffer& buffer, google::protobuf::Message& reply);

// What Attend answers to the problem.
absl::StatusOr<Answer> DecodeAnswer(const Problem& problem, grpc::ByteBuffer& buffer);

}  // namespace attnd::client
