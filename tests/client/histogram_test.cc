#include "client/cli/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace attnd::client {
namespace {

TEST(HistogramTest, SmallNumbersAreExact) {
  Histogram h;
  for (int v = 1; v <= 100; ++v) h.Add(v);
  EXPECT_EQ(h.Percentile(50), 50);
  EXPECT_EQ(h.Percentile(90), 90);
  EXPECT_EQ(h.Percentile(99), 99);
  EXPECT_EQ(h.Percentile(99.5), 100);
  EXPECT_EQ(h.Percentile(0), 1);
  EXPECT_EQ(h.Percentile(100), 100);
  EXPECT_EQ(h.max(), 100);
  EXPECT_EQ(h.mean(), 50.5);
}

TEST(HistogramTest, EmptyOneAndNegative) {
  Histogram h;
  EXPECT_EQ(h.Percentile(99), 0);
  EXPECT_EQ(h.mean(), 0);
  h.Add(-5);
  EXPECT_EQ(h.Percentile(50), 0);
  Histogram one;
  one.Add(123456789);
  EXPECT_EQ(one.Percentile(50), 123456789);  // the only value, though its bucket is wider
  EXPECT_EQ(one.Percentile(1), 123456789);
}

// The rank's value of the sorted list, over nine orders of magnitude.
TEST(HistogramTest, PercentilesAreWithinFourThousandths) {
  std::mt19937_64 generator(7);
  std::vector<std::int64_t> values;
  Histogram h;
  for (int i = 0; i < 20000; ++i) {
    values.push_back(static_cast<std::int64_t>(std::exp(static_cast<double>(generator() % 1000000) * 20.7e-6)));
    h.Add(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double percent : {0.1, 1.0, 25.0, 50.0, 90.0, 99.0, 99.9, 99.99}) {
    const auto rank = static_cast<std::size_t>(std::ceil(percent / 100 * 20000));
    const auto right = static_cast<double>(values[rank - 1]);
    EXPECT_NEAR(h.Percentile(percent), right, 0.004 * right + 1e-9) << percent;
  }
  EXPECT_EQ(h.Percentile(100), static_cast<double>(values.back()));
}

TEST(HistogramTest, MergedIsTheSameAsOne) {
  Histogram all, left, right;
  for (std::int64_t v = 1; v < 100000; v = v * 3 / 2 + 1) {
    all.Add(v);
    (v % 2 == 0 ? left : right).Add(v);
  }
  left.Merge(right);
  left.Merge(Histogram());
  EXPECT_EQ(left.count(), all.count());
  EXPECT_EQ(left.max(), all.max());
  EXPECT_EQ(left.mean(), all.mean());
  for (const double percent : {1.0, 50.0, 99.0}) EXPECT_EQ(left.Percentile(percent), all.Percentile(percent));
}

TEST(HistogramTest, TheLargestNumberHasABucket) {
  Histogram h;
  h.Add(INT64_MAX);
  h.Add(1);
  EXPECT_EQ(h.max(), INT64_MAX);
  EXPECT_EQ(h.Percentile(50), 1);
}

}  // namespace
}  // namespace attnd::client
