// Memory goes back when nobody needs it, by a clock that the test turns, and not before.
#include "server/idle_memory.h"

#include <gtest/gtest.h>

namespace attnd::server {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

struct IdleMemoryTest : testing::Test {
  IdleMemoryTest() { pool.SetBytesMax(std::int64_t{1} << 30); }

  BufferPool pool;
  Budget budget{{.bytes = std::int64_t{1} << 30}};
  int trims = 0;
  IdleMemory idle{pool, budget, [this] { ++trims; }};
};

TEST_F(IdleMemoryTest, TheAllocatorIsTrimmedOnceAfterEachSpellOfWork) {
  idle.Tick(At(0));
  idle.Tick(At(4.9));
  EXPECT_EQ(trims, 0);
  idle.Tick(At(5));
  idle.Tick(At(100));
  EXPECT_EQ(trims, 1);
  {
    Reservation work(budget.AccountOf("a"));
    ASSERT_TRUE(work.GrowTo("work", 1000).ok());
    idle.Tick(At(101));
    idle.Tick(At(105.9));
    EXPECT_EQ(trims, 1);
  }
  // What was given back since is a change too.
  idle.Tick(At(106));
  idle.Tick(At(110.9));
  EXPECT_EQ(trims, 1);
  idle.Tick(At(111));
  EXPECT_EQ(trims, 2);
}

TEST_F(IdleMemoryTest, BlocksLeaveByTheirOwnAge) {
  void* block = pool.Take(kMiB);
  pool.Give(block, kMiB, At(0));
  idle.Tick(At(5));
  EXPECT_EQ(pool.bytes_kept(), static_cast<std::int64_t>(kMiB));
  // Work elsewhere holds no block back.
  Reservation work(budget.AccountOf("a"));
  ASSERT_TRUE(work.GrowTo("work", 1000).ok());
  idle.Tick(At(5.1));
  EXPECT_EQ(pool.bytes_kept(), 0);
}

}  // namespace
}  // namespace attnd::server
