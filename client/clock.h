// Time and chance, as retries meet them: the machine's, or a test's.
// Thread rule: any thread.
#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace attnd::client {

class Timer {
 public:
  virtual ~Timer() = default;
  // Lets what was to happen later happen now, unless it happened already.
  virtual void Cancel() = 0;
};

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
  virtual void Sleep(absl::Duration duration) = 0;
  // Calls `then` once, after the delay, on another thread.
  virtual std::shared_ptr<Timer> After(absl::Duration delay, std::function<void()> then) = 0;
  // From 0 to below 1.
  virtual double Uniform() = 0;

  // The machine's, which lives as long as the process.
  static Clock& System();
};

}  // namespace attnd::client
