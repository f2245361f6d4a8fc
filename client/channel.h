// A connected gRPC channel with a client's credentials: TLS or plaintext, and a token on every call made on it.
// Thread rule: pure functions; a channel may be used from any thread.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace attnd::client {

// Waits until the server answered or options.connect_timeout is over. UNAVAILABLE when nobody answers, UNAUTHENTICATED
// when a handshake fails, with gRPC's reason; otherwise as LoadCredentials.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& target, const ClientOptions& options);

}  // namespace attnd::client
