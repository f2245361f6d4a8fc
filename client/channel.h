// Connected gRPC channels with a client's credentials: TLS or plaintext, and a token on every call made on them.
// Thread rule: pure functions; a channel may be used from any thread.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/options.h"

namespace attnd::client {

// options.connections of them, each of its own connection. Waits until a server answered on every one or
// options.connect_timeout is over. UNAVAILABLE when nobody answers, UNAUTHENTICATED when a handshake fails, with gRPC's
// reason; otherwise as LoadCredentials.
absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> OpenChannels(const std::string& target,
                                                                         const ClientOptions& options);

}  // namespace attnd::client
