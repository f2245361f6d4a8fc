// Attend: one message in, one message out. The reaction parses and admits; the pool computes straight into the answer.
// Thread rule: made by gRPC's threads, finished by a worker of the pool.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/engine.h"

namespace attnd::server {

grpc::ServerUnaryReactor* StartAttend(Engine& engine, grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request, grpc::ByteBuffer* response);

// The deadline that came with the call; infinite when there was none.
absl::Time CallDeadline(const grpc::CallbackServerContext& context);

}  // namespace attnd::server
