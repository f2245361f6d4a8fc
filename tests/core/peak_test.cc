// The measured peak is one: nothing that the pool does takes less time for its multiply-adds.
#include "core/peak.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>

#include "tests/core/compare.h"

namespace attnd {
namespace {

TEST(PeakTest, EveryThreadTakesPart) {
  Executor executor(3);
  std::mutex mutex;
  std::set<int> workers;
  std::set<std::thread::id> threads;
  const double seconds = RunOnAll(executor, [&](int worker) {
    const std::lock_guard lock(mutex);
    workers.insert(worker);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(workers, (std::set<int>{0, 1, 2}));
  EXPECT_EQ(threads.size(), 3u);
  EXPECT_GE(seconds, 0);
}

TEST(PeakTest, BothClocksGiveARateOfThisCentury) {
  const Peak peak = FmaPeak(Pool());
  for (const double rate : {peak.by_cpu_time, peak.by_wall_clock}) {
    EXPECT_GT(rate, 1e6);
    EXPECT_LT(rate, 1e15);
  }
}

}  // namespace
}  // namespace attnd
