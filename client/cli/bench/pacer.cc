#include "client/cli/bench/pacer.h"

#include <algorithm>

namespace attnd::client {

namespace {

// Longer than a wake-up takes to be noticed, shorter than the gaps of the highest rates.
constexpr std::int64_t kSpinNs = 15'000;
// How often a long wait looks whether the load was stopped.
constexpr std::int64_t kLookNs = 100'000'000;

}  // namespace

std::int64_t SteadyClock::Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

void SteadyClock::WaitUntil(std::int64_t ns) {
  const std::int64_t wake = ns - kSpinNs;
  while (Now() < wake) {
    const timespec until{wake / 1'000'000'000, wake % 1'000'000'000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
  }
  while (Now() < ns) {
  }
}

std::int64_t Pace(Arrivals arrivals, ScheduleClock& clock, std::int64_t start_ns, std::int64_t end_ns,
                  std::int64_t grace_ns, Sender& sender) {
  while (true) {
    const std::int64_t due = start_ns + arrivals.Next();
    if (due >= end_ns) return 0;
    while (!sender.Stopped() && clock.Now() < due) clock.WaitUntil(std::min(due, clock.Now() + kLookNs));
    if (sender.Stopped()) return 0;
    if (clock.Now() > end_ns + grace_ns) {
      std::int64_t left = 1;
      while (start_ns + arrivals.Next() < end_ns) ++left;
      return left;
    }
    const std::int64_t room = sender.WaitForRoom() ? clock.Now() : due;
    sender.Send(due);
    sender.Late(due, room, clock.Now());
  }
}

}  // namespace attnd::client
