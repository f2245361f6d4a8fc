// The time that deadlines and durations are measured by. It reads like the time of day at which the process first
// asked, and from there on it runs evenly, whatever is done to the machine's clock. Thread rule: every function from
// any thread.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace attnd {

inline absl::Time Now() {
  const auto steady = [] { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); };
  static const absl::Time origin = absl::Now() - steady();
  return origin + steady();
}

}  // namespace attnd
