#include "server/lifecycle.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "server/recent_ids.h"
#include "server/stall_watch.h"

namespace attnd::server {
namespace {

TEST(LifecycleTest, ADrainRefusesNewWorkAndWaitsForTheOld) {
  Lifecycle lifecycle;
  absl::StatusOr<Lifecycle::Work> work = lifecycle.Enter();
  ASSERT_TRUE(work.ok());
  EXPECT_FALSE(lifecycle.draining());
  lifecycle.BeginDrain();
  EXPECT_TRUE(lifecycle.draining());
  EXPECT_EQ(lifecycle.Enter().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(lifecycle.AwaitIdle(absl::Now() + absl::Milliseconds(50)));
  std::thread finisher([&work] { work->reset(); });
  EXPECT_TRUE(lifecycle.AwaitIdle(absl::Now() + absl::Seconds(30)));
  finisher.join();
}

TEST(LifecycleTest, AnIdleServerDrainsAtOnce) {
  Lifecycle lifecycle;
  lifecycle.BeginDrain();
  EXPECT_TRUE(lifecycle.AwaitIdle(absl::Now()));
}

TEST(LifecycleTest, ItIsQuietWhenNobodyAsksAnyMore) {
  Lifecycle lifecycle;
  lifecycle.AwaitQuiet(absl::Hours(1), absl::InfiniteFuture());  // nobody ever asked
  lifecycle.BeginDrain();
  const absl::Time refused = absl::Now();
  EXPECT_FALSE(lifecycle.Enter().ok());
  lifecycle.AwaitQuiet(absl::Milliseconds(200), absl::InfiniteFuture());
  EXPECT_GE(absl::Now() - refused, absl::Milliseconds(190));
  lifecycle.AwaitQuiet(absl::Hours(1), absl::Now());  // noise does not hold it for ever
}

class CountingCall : public Watched {
 public:
  explicit CountingCall(std::atomic<int>& ticks) : ticks_(ticks) {}
  void Tick(absl::Time) override { ++ticks_; }

 private:
  std::atomic<int>& ticks_;
};

TEST(StallWatchTest, TicksWhatLivesAndForgetsWhatDied) {
  std::atomic<int> ticks{0};
  StallWatch watch(absl::Hours(1));  // only TickSoon ticks
  auto call = std::make_shared<CountingCall>(ticks);
  watch.Add(call);
  watch.TickSoon();
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  while (ticks == 0 && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GE(ticks, 1);
  const std::weak_ptr<CountingCall> alive = call;
  call.reset();
  while (!alive.expired() && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
  const int before = ticks;
  watch.TickSoon();
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(ticks, before);
}

TEST(RecentIdsTest, KeepsTheLastAndForgetsTheOldest) {
  RecentIds recent;
  for (std::uint64_t id = 0; id < RecentIds::kKept + 10; ++id) {
    recent.Add(id);
    recent.Add(id);
  }
  EXPECT_FALSE(recent.Contains(9));
  EXPECT_TRUE(recent.Contains(10));
  EXPECT_TRUE(recent.Contains(RecentIds::kKept + 9));
  recent.Remove(500);
  EXPECT_FALSE(recent.Contains(500));
  recent.Remove(500);
  recent.Add(500);
  EXPECT_TRUE(recent.Contains(500));
}

}  // namespace
}  // namespace attnd::server
