// What every call does first with a message: split it, reserve what parsing takes, let protobuf parse.
// Thread rule: from any thread.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "proto/wire/raw_message.h"
#include "server/engine.h"

namespace attnd::server {

// Messages with no more small fields than this are parsed without a reservation: what a few threads hold for a moment.
constexpr std::int64_t kFreeMessageBytes = 64 << 10;

// Fills `message`, whose `bytes` fields are DataExtents, and empties `buffer`. `held` is what was reserved for the same
// message, and grows. INVALID_ARGUMENT when the bytes are no such message, RESOURCE_EXHAUSTED.
absl::StatusOr<RawMessage> Receive(const Engine& engine, grpc::ByteBuffer& buffer, google::protobuf::Message& message,
                                   Reservation& held);

// Before `bytes` of small fields take their parsed form, in a message or in lists. RESOURCE_EXHAUSTED.
absl::Status ReserveParsed(std::int64_t bytes, Reservation& held);

}  // namespace attnd::server
