#include "core/checked.h"

#include <gtest/gtest.h>

#include <limits>

namespace attnd {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

TEST(CheckedProduct, IsExactUpToTheLargestInt64) {
  EXPECT_EQ(CheckedProduct({}), 1);
  EXPECT_EQ(CheckedProduct({7}), 7);
  EXPECT_EQ(CheckedProduct({3, 5, 7}), 105);
  EXPECT_EQ(CheckedProduct({kMax, 1}), kMax);
  EXPECT_EQ(CheckedProduct({7, 7, 73, 127, 337, 92737, 649657}), kMax);  // the prime factors of 2^63 - 1
  EXPECT_EQ(CheckedProduct({std::int64_t{1} << 31, std::int64_t{1} << 31}), std::int64_t{1} << 62);
}

TEST(CheckedProduct, SaysWhenItDoesNotFit) {
  EXPECT_EQ(CheckedProduct({std::int64_t{1} << 32, std::int64_t{1} << 31}), std::nullopt);
  EXPECT_EQ(CheckedProduct({kMax, 2}), std::nullopt);
  EXPECT_EQ(CheckedProduct({std::int64_t{1} << 32, std::int64_t{1} << 32}), std::nullopt);  // wraps to 0
  EXPECT_EQ(CheckedProduct({kMax, kMax, kMax}), std::nullopt);
}

TEST(CheckedProduct, RefusesNegativeFactors) {
  EXPECT_EQ(CheckedProduct({-1}), std::nullopt);
  EXPECT_EQ(CheckedProduct({-3, -5}), std::nullopt);
  EXPECT_EQ(CheckedProduct({kMin, kMin}), std::nullopt);
}

TEST(CheckedProduct, ZeroWinsWhereverItStands) {
  EXPECT_EQ(CheckedProduct({0, kMax, kMax}), 0);
  EXPECT_EQ(CheckedProduct({kMax, kMax, 0}), 0);
}

TEST(CheckedSum, IsExactOrNothing) {
  EXPECT_EQ(CheckedSum({}), 0);
  EXPECT_EQ(CheckedSum({1, -2, 3}), 2);
  EXPECT_EQ(CheckedSum({kMax - 1, 1}), kMax);
  EXPECT_EQ(CheckedSum({kMax, 1}), std::nullopt);
  EXPECT_EQ(CheckedSum({kMin, -1}), std::nullopt);
}

TEST(CeilDiv, RoundsUpWithoutOverflow) {
  EXPECT_EQ(CeilDiv(0, 4), 0);
  EXPECT_EQ(CeilDiv(1, 4), 1);
  EXPECT_EQ(CeilDiv(4, 4), 1);
  EXPECT_EQ(CeilDiv(5, 4), 2);
  EXPECT_EQ(CeilDiv(kMax, 2), std::int64_t{1} << 62);
  EXPECT_EQ(CeilDiv(kMax, 1), kMax);
}

}  // namespace
}  // namespace attnd
