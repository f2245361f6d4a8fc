// How a client connects, how long its calls may take, and what it asks again.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "client/credentials.h"

namespace attnd::client {

// Attention has no side effects, so what a server had no room for, or what was lost with a connection, may be asked
// again: calls that ended UNAVAILABLE, or RESOURCE_EXHAUSTED with the server's word on when to come back. Nothing is
// waited for beyond a call's deadline; where the wait would pass it, the status comes at once.
struct RetryOptions {
  int max_attempts = 5;  // of one call, the first included; 1: ask once
  // The wait before the second attempt, which grows by `multiplier` up to the longest; each wait is made up to
  // `jitter` of itself shorter or longer by chance. A server's own delay is never made shorter.
  absl::Duration initial_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(5);
  double multiplier = 2;
  double jitter = 0.2;
  // The budget of all calls of a client together, so that they cannot make an overload worse: a failed attempt takes
  // one token, an answered call gives `token_ratio` back, and nothing is asked again unless more than half are there.
  // 0 tokens: no budget.
  double max_tokens = 10;
  double token_ratio = 0.1;
};

// Which of the addresses that a target stands for get calls.
enum class Balancing {
  kFirst,       // the first that answers
  kRoundRobin,  // all that answer, in turn
};

struct ClientOptions {
  absl::Duration timeout = absl::Seconds(60);         // of a call that gives none
  absl::Duration connect_timeout = absl::Seconds(5);  // cut by timeout
  std::int64_t piece_bytes = 1 << 20;                 // most tensor bytes in one message of a stream
  Credentials credentials;                            // nothing: plaintext, and no token
  RetryOptions retry;
  // Connections to each address; a call goes over the one with the fewest calls.
  int connections = 1;
  Balancing balancing = Balancing::kFirst;
};

// When a call is over at the latest: the earlier of the two, and with neither after ClientOptions::timeout.
struct CallOptions {
  std::optional<absl::Duration> timeout;
  // A server that calls on behalf of a caller passes absl::FromChrono(context->deadline()) on; where that caller had
  // no deadline, it counts as none here.
  std::optional<absl::Time> deadline = {};
};

}  // namespace attnd::client
