#include "core/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace attnd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Keys 1 and 2 with values 10 and 20 under the query 1: each half alone, then together.
TEST(MergeTest, TwoHalvesGiveTheWhole) {
  float output = 10, lse = 1;
  const float other_output = 20, other_lse = 2;
  MergeAnswers(1, 1, &output, &lse, &other_output, &other_lse);
  EXPECT_NEAR(output, 17.3105857863, 2e-6);
  EXPECT_NEAR(lse, 2.313261687518223, 3e-7);
}

TEST(MergeTest, AnEmptyPartChangesNothing) {
  float output[] = {0, 5}, lse[] = {-kInfinity, 3};
  const float other_output[] = {7, 0}, other_lse[] = {2, -kInfinity};
  MergeAnswers(2, 1, output, lse, other_output, other_lse);
  EXPECT_EQ(output[0], 7);
  EXPECT_EQ(lse[0], 2);
  EXPECT_EQ(output[1], 5);
  EXPECT_EQ(lse[1], 3);
}

TEST(MergeTest, TwoEmptyPartsStayEmpty) {
  float output[] = {1, 1}, lse = -kInfinity;
  const float other_output[] = {0, 0}, other_lse = -kInfinity;
  MergeAnswers(1, 2, output, &lse, other_output, &other_lse);
  EXPECT_EQ(output[1], 0);
  EXPECT_EQ(lse, -kInfinity);
}

TEST(MergeTest, FarApartAndNan) {
  float output[] = {1, 1}, lse[] = {-20000, NAN};
  const float other_output[] = {2, 2}, other_lse[] = {20000, 1};
  MergeAnswers(2, 1, output, lse, other_output, other_lse);
  EXPECT_EQ(output[0], 2);
  EXPECT_EQ(lse[0], 20000);
  EXPECT_TRUE(std::isnan(output[1]));
  EXPECT_TRUE(std::isnan(lse[1]));
}

}  // namespace
}  // namespace attnd
