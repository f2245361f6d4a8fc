#include "server/recent_ids.h"

#include <gtest/gtest.h>

namespace attnd::server {
namespace {

TEST(RecentIdsTest, TheLastOnesAreKnown) {
  RecentIds recent;
  for (std::uint64_t id = 0; id < 3 * RecentIds::kKept; ++id) {
    recent.Add(id);
    recent.Add(id);  // no second place
    EXPECT_TRUE(recent.Contains(id));
    const std::uint64_t first_known = id < RecentIds::kKept ? 0 : id - RecentIds::kKept + 1;
    EXPECT_TRUE(recent.Contains(first_known));
    if (first_known > 0) {
      EXPECT_FALSE(recent.Contains(first_known - 1));
    }
  }
}

TEST(RecentIdsTest, RemovingOneKeepsTheOrderOfTheOthers) {
  RecentIds recent;
  for (std::uint64_t id = 0; id < RecentIds::kKept + 10; ++id) recent.Add(id);  // 10 is the oldest now
  recent.Remove(100);
  recent.Remove(7777);  // not known
  EXPECT_FALSE(recent.Contains(100));
  recent.Add(5000);  // takes the place that is free
  EXPECT_TRUE(recent.Contains(10));
  recent.Add(5001);
  EXPECT_FALSE(recent.Contains(10));
  EXPECT_TRUE(recent.Contains(11));
  EXPECT_TRUE(recent.Contains(RecentIds::kKept + 9));
}

}  // namespace
}  // namespace attnd::server
