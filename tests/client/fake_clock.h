// Time that passes only where somebody waits, and chance that is always the same. What is to happen later happens at
// once, on a thread of its own, and the time until then has passed; held timers happen when they are cancelled.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/clock.h"

namespace attnd::client {

class FakeClock : public Clock {
 public:
  ~FakeClock() override {
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Time Now() override {
    const std::scoped_lock lock(mutex_);
    return now_;
  }
  void Sleep(absl::Duration duration) override {
    const std::scoped_lock lock(mutex_);
    now_ += duration;
    waits_.push_back(duration);
  }
  std::shared_ptr<Timer> After(absl::Duration delay, std::function<void()> then) override {
    auto timer = std::make_shared<HeldTimer>();
    const std::scoped_lock lock(mutex_);
    waits_.push_back(delay);
    waited_.notify_all();
    if (!hold_ || delay == absl::ZeroDuration()) {
      now_ += delay;
      timer->go = true;
    }
    threads_.emplace_back([timer, then = std::move(then)] {
      timer->Wait();
      then();
    });
    return timer;
  }
  double Uniform() override { return uniform; }

  // From here on timers wait until they are cancelled.
  void Hold() { hold_ = true; }
  // Returns when somebody waits for the `count`th time.
  void AwaitWaits(std::size_t count) {
    std::unique_lock lock(mutex_);
    waited_.wait(lock, [&] { return waits_.size() >= count; });
  }
  std::vector<absl::Duration> Waits() {
    const std::scoped_lock lock(mutex_);
    return waits_;
  }

  std::atomic<double> uniform = 0.5;  // no jitter

 private:
  struct HeldTimer : Timer {
    void Cancel() override {
      const std::scoped_lock lock(mutex);
      go = true;
      changed.notify_all();
    }
    void Wait() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return go; });
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool go = false;
  };

  std::mutex mutex_;
  std::condition_variable waited_;
  absl::Time now_ = absl::Now();  // real at first, since gRPC sees deadlines that are made of it
  std::vector<absl::Duration> waits_;
  std::vector<std::thread> threads_;
  std::atomic<bool> hold_ = false;
};

}  // namespace attnd::client
