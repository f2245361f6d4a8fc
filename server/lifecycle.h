// From the first signal to the end of the process: who is still at work, who may begin, and when it is over.
//
// SIGTERM or SIGINT begins a drain: health says NOT_SERVING, new problems are refused, accepted ones finish until
// drain_ms and are cancelled then. A second signal ends the process at once with exit code 1.
// Thread rule: Lifecycle from any thread; the signal functions from main.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace attnd::server {

class Lifecycle {
 public:
  // Held while a call or a problem is at work here.
  using Work = std::shared_ptr<const void>;

  // UNAVAILABLE once a drain began.
  absl::StatusOr<Work> Enter();
  bool draining() const;
  void BeginDrain();
  // True when nobody is at work any more, false when `until` came first.
  bool AwaitIdle(absl::Time until);
  // Returns when for `quiet` no work has asked to enter, in vain or not, or when `until` came.
  void AwaitQuiet(absl::Duration quiet, absl::Time until);

 private:
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  bool draining_ = false;
  std::int64_t at_work_ = 0;
  absl::Time last_asked_ = absl::InfinitePast();
};

// What a refused caller is told during a drain.
absl::Status Draining();

// Before any other thread starts: SIGTERM and SIGINT wait for AwaitSignal. SIGPIPE is ignored.
void BlockSignals();
// Returns with the number of the signal that came.
int AwaitSignal();
// From here on the next signal ends the process with code 1, and so does nothing else until `limit`, when the process
// ends with code 0 in any case: a peer must not be able to hold it.
void StartWatchdog(absl::Duration limit);

}  // namespace attnd::server
