// Ctrl-C while loads run: the first ends the load at that moment, so that what it showed can be reported; the second
// ends the process, as it does everywhere else.
// Thread rule: one at a time; `at_ns` may be read by any thread.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstdint>

namespace attnd::client {

// What is never before a moment that the clock can show.
constexpr std::int64_t kNever = INT64_MAX;

class Interrupt {
 public:
  // From now on SIGINT and SIGTERM are taken.
  Interrupt();
  // As they were before.
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // When the first came, on CLOCK_MONOTONIC; kNever until then.
  static const std::atomic<std::int64_t>& at_ns();

 private:
  struct sigaction interrupt_before_ {
  }, terminate_before_{};
};

}  // namespace attnd::client
