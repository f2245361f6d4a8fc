#include "server/stopper.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "absl/time/clock.h"

namespace attnd::server {
namespace {

constexpr absl::Duration kHang = absl::Seconds(30);

// How the job ended; an error of its own when it did not within kHang.
absl::Status Outcome(std::promise<absl::Status>& done) {
  std::future<absl::Status> ended = done.get_future();
  if (ended.wait_for(absl::ToChronoMilliseconds(kHang)) == std::future_status::ready) return ended.get();
  return absl::DeadlineExceededError("the job did not end");
}

// A job of one unit that is held back until `open`, and has been seen held back when it returns.
struct HeldJob {
  HeldJob(Executor& executor, Stopper& stopper) {
    std::vector<Phase> phases(1);
    phases[0].units = 1;
    phases[0].run = [](std::int64_t, WorkerContext&) { return nullptr; };
    phases[0].ready = [this] {
      const std::int64_t units = open ? 1 : 0;
      looked = true;
      return units;
    };
    job = std::make_shared<Job>(std::move(phases), stopper.token(),
                                [this](const JobReport& report) { done.set_value(report.status); });
    executor.Submit(job);
    const absl::Time limit = absl::Now() + kHang;
    while (!looked && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
  }
  std::atomic<bool> open{false}, looked{false};
  std::promise<absl::Status> done;
  std::shared_ptr<Job> job;
};

TEST(StopperTest, AWakeBeforeTheJobIsKnownIsNotLost) {
  Executor executor(1);
  Stopper stopper(executor, absl::InfiniteFuture());
  HeldJob held(executor, stopper);
  held.open = true;
  stopper.Wake();  // the queue drained while StartAttention had not returned yet
  stopper.Set(held.job);
  EXPECT_EQ(Outcome(held.done), absl::OkStatus());
}

TEST(StopperTest, AStopEndsAJobThatIsHeldBackAndTheFirstReasonWins) {
  Executor executor(1);
  Stopper stopper(executor, absl::InfiniteFuture());
  HeldJob held(executor, stopper);
  stopper.Set(held.job);
  stopper.Stop(absl::CancelledError("first"));
  stopper.Stop(absl::InternalError("second"));
  EXPECT_EQ(Outcome(held.done), absl::CancelledError("first"));
}

TEST(StopperTest, AStopBeforeTheJobIsKnownEndsIt) {
  Executor executor(1);
  Stopper stopper(executor, absl::InfiniteFuture());
  HeldJob held(executor, stopper);
  stopper.Stop(absl::CancelledError("early"));
  stopper.Set(held.job);
  EXPECT_EQ(Outcome(held.done), absl::CancelledError("early"));
}

}  // namespace
}  // namespace attnd::server
