// Follows a schedule: hands over each request when it is due, or as soon afterwards as there is room, and never waits
// for an answer. The clock and what takes the requests are given, so that tests have both on paper.
// Thread rule: Pace runs on one thread; what it calls may be used by others as they say.
#pragma once

#include <time.h>

#include <cstdint>

#include "client/cli/bench/arrivals.h"

namespace attnd::client {

// Nanoseconds that only grow.
class ScheduleClock {
 public:
  virtual ~ScheduleClock() = default;
  virtual std::int64_t Now() = 0;
  virtual void WaitUntil(std::int64_t ns) = 0;
};

// CLOCK_MONOTONIC. Sleeps, then spins for the last microseconds, which sleeping misses.
class SteadyClock : public ScheduleClock {
 public:
  std::int64_t Now() override;
  void WaitUntil(std::int64_t ns) override;
};

// Where requests go.
class Sender {
 public:
  virtual ~Sender() = default;
  // Waits until another request may be in flight. True when there was no room at first.
  virtual bool WaitForRoom() = 0;
  // Starts the request that was due at `due_ns` of the clock.
  virtual void Send(std::int64_t due_ns) = 0;
  // Whether the load was stopped before its end.
  virtual bool Stopped() { return false; }
  // How late it was: from when it was due, or from when there was room where that was later, until it was sent.
  virtual void Late(std::int64_t due_ns, std::int64_t room_ns, std::int64_t sent_ns) = 0;
};

// Sends what is due from `start_ns` until before `end_ns`, or until the sender says that it is stopped. What could not
// be sent `grace_ns` after the end never is. Returns how many were due and not sent.
std::int64_t Pace(Arrivals arrivals, ScheduleClock& clock, std::int64_t start_ns, std::int64_t end_ns,
                  std::int64_t grace_ns, Sender& sender);

}  // namespace attnd::client
