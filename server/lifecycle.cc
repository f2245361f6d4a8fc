#include "server/lifecycle.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "core/clock.h"
#include "server/log.h"

namespace attnd::server {
namespace {

sigset_t OurSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

absl::Status Draining() { return absl::UnavailableError("draining: this server is shutting down"); }

absl::StatusOr<Lifecycle::Work> Lifecycle::Enter() {
  const std::lock_guard lock(mutex_);
  last_asked_ = Now();
  if (draining_) return Draining();
  ++at_work_;
  return Work(this, [this](const void*) {
    const std::lock_guard leaving(mutex_);
    if (--at_work_ == 0) idle_.notify_all();
  });
}

bool Lifecycle::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

void Lifecycle::BeginDrain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

bool Lifecycle::AwaitIdle(absl::Time until) {
  std::unique_lock lock(mutex_);
  // Bounded steps: a clock that jumps must not hold the drain.
  while (at_work_ > 0 && Now() < until) idle_.wait_for(lock, std::chrono::milliseconds(20));
  return at_work_ == 0;
}

void Lifecycle::AwaitQuiet(absl::Duration quiet, absl::Time until) {
  const auto noisy = [&] {
    const std::lock_guard lock(mutex_);
    return Now() - last_asked_ < quiet;
  };
  while (noisy() && Now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void BlockSignals() {
  const sigset_t signals = OurSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

int AwaitSignal() {
  const sigset_t signals = OurSignals();
  int number = 0;
  while (sigwait(&signals, &number) != 0) {
  }
  return number;
}

void StartWatchdog(absl::Duration limit) {
  std::thread([] {
    AwaitSignal();
    Log(LogLevel::kWarning, "second signal: ending at once");
    _exit(1);
  }).detach();
  std::thread([limit] {
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(limit));
    Log(LogLevel::kError, "the drain did not end in time: ending without it");
    _exit(0);
  }).detach();
}

}  // namespace attnd::server
