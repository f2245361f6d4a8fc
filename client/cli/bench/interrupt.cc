#include "client/cli/bench/interrupt.h"

#include <time.h>
#include <unistd.h>

#include <string_view>

namespace attnd::client {

namespace {

std::atomic<std::int64_t> interrupted_ns{kNever};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);  // a signal handler writes it

constexpr std::string_view kSaid =
    "\nstopping; what was measured follows when the open calls are answered. Once more ends at once\n";

extern "C" void Take(int /*signal*/) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::int64_t first = kNever;
  interrupted_ns.compare_exchange_strong(first, now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec);
  // Nothing can be done about a closed terminal.
  [[maybe_unused]] const ssize_t put = write(STDERR_FILENO, kSaid.data(), kSaid.size());
}

}  // namespace

Interrupt::Interrupt() {
  interrupted_ns = kNever;
  struct sigaction action {};
  action.sa_handler = Take;
  // The second has the system's own effect.
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &interrupt_before_);
  sigaction(SIGTERM, &action, &terminate_before_);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &interrupt_before_, nullptr);
  sigaction(SIGTERM, &terminate_before_, nullptr);
}

const std::atomic<std::int64_t>& Interrupt::at_ns() { return interrupted_ns; }

}  // namespace attnd::client
