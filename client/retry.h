// Whether and when a call is asked again. Decides only: waiting is the caller's.
// Thread rule: a RetryBudget may be used from any thread; a Retries by one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/options.h"

namespace attnd::client {

// A token bucket as in gRPC's retry throttling (proposal A6), shared by the calls of a client.
class RetryBudget {
 public:
  explicit RetryBudget(const RetryOptions& options);

  // Takes a token. Whether enough are left for another attempt.
  bool OnFailure();
  void OnSuccess();

 private:
  // Thousandths of a token.
  const std::int64_t max_, gain_;
  std::atomic<std::int64_t> tokens_;
};

// The attempts of one call.
class Retries {
 public:
  Retries(const RetryOptions& options, RetryBudget& budget, absl::Time deadline)
      : options_(options), budget_(budget), deadline_(deadline), backoff_(options.initial_backoff) {}

  // An attempt ended with `status` at `now`: how long to wait before the next one, or nothing where the status stands.
  // `uniform` is a random number from 0 to below 1.
  std::optional<absl::Duration> After(const absl::Status& status, absl::Time now, double uniform);

 private:
  const RetryOptions& options_;
  RetryBudget& budget_;
  const absl::Time deadline_;
  absl::Duration backoff_;
  int attempts_ = 0;
};

}  // namespace attnd::client
