// How commands send a problem: whole when it is small, over a stream when it is not.
// Thread rule: pure functions.
#pragma once

#include "client/client.h"

namespace attnd::client {

// Tensors in and out above this many bytes go over a stream.
constexpr std::int64_t kUnaryBytesMax = 2 << 20;

// Whether the problem should go over a stream. Unknown reply sizes go whole: the server says what is wrong.
bool WantsStream(const Problem& problem);

absl::StatusOr<Answer> Ask(Client& client, const Problem& problem);

}  // namespace attnd::client
