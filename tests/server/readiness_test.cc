// Ready is who computes rightly now, however much waits; and not who drains or whose pool stands still.
#include "server/readiness.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

namespace attnd::server {
namespace {

ServerConfig TwoThreads() {
  ServerConfig config;
  config.threads = 2;
  config.memory_bytes_max = 256 << 20;
  return config;
}

// Holds every thread of the pool until it is destroyed.
class Blockade {
 public:
  explicit Blockade(Executor& executor) {
    Phase phase;
    phase.units = executor.threads();
    phase.unit_time = absl::Seconds(1);
    phase.run = [this](std::int64_t, WorkerContext&) {
      ++held_;
      while (!open_) std::this_thread::yield();
      return nullptr;
    };
    executor.Submit(std::make_shared<Job>(std::vector<Phase>{phase}, std::make_shared<CancelToken>(),
                                          [this](const JobReport&) { done_.set_value(); }));
    while (held_ < executor.threads()) std::this_thread::yield();
  }
  ~Blockade() {
    open_ = true;
    done_.get_future().wait();
  }

 private:
  std::atomic<bool> open_{false};
  std::atomic<int> held_{0};
  std::promise<void> done_;
};

TEST(ReadinessTest, AnIdleServerIsReadyAgainAndAgain) {
  Engine engine(Resolve(TwoThreads()));
  Readiness readiness(engine);
  for (int n = 0; n < 10; ++n) EXPECT_EQ(readiness.Check(), absl::OkStatus());
  EXPECT_NE(engine.metrics.Page().find("attnd_readiness_checks_total{result=\"ok\"} 10"), std::string::npos);
}

TEST(ReadinessTest, ManyAskAtOnce) {
  Engine engine(Resolve(TwoThreads()));
  Readiness readiness(engine);
  std::vector<std::future<absl::Status>> checks;
  for (int n = 0; n < 16; ++n) checks.push_back(std::async(std::launch::async, [&] { return readiness.Check(); }));
  for (std::future<absl::Status>& check : checks) EXPECT_EQ(check.get(), absl::OkStatus());
}

TEST(ReadinessTest, AFullBudgetDoesNotMatter) {
  Engine engine(Resolve(TwoThreads()));
  Readiness readiness(engine);
  Reservation all(engine.budget.AccountOf("greedy"));
  ASSERT_TRUE(all.GrowTo("bytes of memory", engine.budget.bytes_allowed()).ok());
  EXPECT_EQ(readiness.Check(), absl::OkStatus());
}

TEST(ReadinessTest, APoolThatStandsStillIsNotReadyAndIsAgainWhenItMoves) {
  Engine engine(Resolve(TwoThreads()));
  Readiness readiness(engine);
  {
    const Blockade blockade(engine.executor);
    const absl::Status status = readiness.Check();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("3000 ms"), absl::string_view::npos) << status;
    EXPECT_NE(engine.metrics.Page().find("attnd_readiness_checks_total{result=\"failed\"} 1"), std::string::npos);
  }
  while (engine.executor.jobs_in_flight() > 0) std::this_thread::yield();
  EXPECT_EQ(readiness.Check(), absl::OkStatus());
}

TEST(ReadinessTest, ADrainIsTheEndOfIt) {
  Engine engine(Resolve(TwoThreads()));
  Readiness readiness(engine);
  engine.lifecycle.BeginDrain();
  EXPECT_EQ(readiness.Check(), Draining());
}

}  // namespace
}  // namespace attnd::server
