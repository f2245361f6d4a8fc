#include "client/clock.h"

#include <grpcpp/alarm.h>

#include <random>
#include <utility>

#include "absl/time/clock.h"

namespace attnd::client {

namespace {

class AlarmTimer : public Timer {
 public:
  AlarmTimer(absl::Time when, std::function<void()> then) {
    alarm_.Set(absl::ToChronoTime(when), [then = std::move(then)](bool) { then(); });
  }
  void Cancel() override { alarm_.Cancel(); }

 private:
  grpc::Alarm alarm_;
};

class SystemClock : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  void Sleep(absl::Duration duration) override { absl::SleepFor(duration); }
  std::shared_ptr<Timer> After(absl::Duration delay, std::function<void()> then) override {
    return std::make_shared<AlarmTimer>(Now() + delay, std::move(then));
  }
  double Uniform() override {
    thread_local std::minstd_rand generator{std::random_device{}()};
    return std::uniform_real_distribution<>(0, 1)(generator);
  }
};

}  // namespace

Clock& Clock::System() {
  static Clock& clock = *new SystemClock();
  return clock;
}

}  // namespace attnd::client
