#include "server/byte_cover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace attnd::server {
namespace {

TEST(ByteCoverTest, PiecesInEveryOrderCoverOnce) {
  std::vector<int> order(6);
  std::iota(order.begin(), order.end(), 0);
  do {
    ByteCover cover(16);  // pieces of 1, 2, 3, 4, 5 and 1 bytes
    const std::int64_t begin[] = {0, 1, 3, 6, 10, 15, 16};
    for (const int piece : order) {
      EXPECT_FALSE(cover.complete());
      ASSERT_TRUE(cover.Add(begin[piece], begin[piece + 1] - begin[piece]).ok());
    }
    EXPECT_TRUE(cover.complete());
    EXPECT_FALSE(cover.Add(7, 1).ok());
  } while (std::next_permutation(order.begin(), order.end()));
}

// Against a bitmap: every pair of pieces of a small tensor.
TEST(ByteCoverTest, EveryOverlapIsRefused) {
  constexpr std::int64_t kBytes = 6;
  for (std::int64_t a = 0; a < kBytes; ++a) {
    for (std::int64_t a_end = a + 1; a_end <= kBytes; ++a_end) {
      for (std::int64_t b = 0; b < kBytes; ++b) {
        for (std::int64_t b_end = b + 1; b_end <= kBytes; ++b_end) {
          ByteCover cover(kBytes);
          ASSERT_TRUE(cover.Add(a, a_end - a).ok());
          const bool apart = b_end <= a || b >= a_end;
          EXPECT_EQ(cover.Add(b, b_end - b).ok(), apart) << a << " " << a_end << " " << b << " " << b_end;
          EXPECT_EQ(cover.came(), apart ? a_end - a + b_end - b : a_end - a);
        }
      }
    }
  }
}

TEST(ByteCoverTest, PiecesOutsideAreRefused) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  ByteCover cover(100);
  for (const auto& [offset, length] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{-1, 1},
                                                          {0, 101},
                                                          {100, 1},
                                                          {99, 2},
                                                          {kMost, 1},
                                                          {1, kMost},
                                                          {kMost, kMost},
                                                          {std::numeric_limits<std::int64_t>::min(), 1}}) {
    const absl::Status status = cover.Add(offset, length);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("expected to lie within 100 bytes"), absl::string_view::npos) << status;
  }
  EXPECT_EQ(cover.Add(0, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cover.came(), 0);
  EXPECT_TRUE(cover.Add(99, 1).ok());
}

TEST(ByteCoverTest, ScatteredBytesDoNotGrowWithoutBound) {
  ByteCover cover(1 << 20);
  absl::Status status;
  int pieces = 0;
  while (status.ok() && pieces < 5000) status = cover.Add(2 * pieces++, 1);
  EXPECT_EQ(pieces, ByteCover::kGapsMax + 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace attnd::server
