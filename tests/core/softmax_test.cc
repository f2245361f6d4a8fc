#include "core/softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace attnd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLog2E = std::numbers::log2e_v<float>;

// e^x as the softmax computes it: a row whose maximum is 0.
float Exponential(float x) {
  std::vector<float> row(kSoftmaxColumnsStep, -kInfinity);
  row[0] = 0;
  row[5] = x;
  float m = -kInfinity, l = 0, alpha = 0;
  SoftmaxStep({row.data(), kSoftmaxColumnsStep, 1, kSoftmaxColumnsStep, kLog2E}, &m, &l, &alpha);
  return row[5];
}

TEST(SoftmaxTest, ExponentialIsCloseEverywhere) {
  double worst = 0;
  for (double x = 0; x > -87.3; x -= 0.00137) {
    const auto rounded = static_cast<float>(x);
    worst = std::max(worst, std::abs(Exponential(rounded) / std::exp(double{rounded}) - 1) / (4 - rounded));
  }
  EXPECT_LT(worst, 0x1p-24);
}

TEST(SoftmaxTest, ExponentialsEdges) {
  EXPECT_EQ(Exponential(0), 1.0F);
  EXPECT_EQ(Exponential(-kInfinity), 0.0F);
  EXPECT_EQ(Exponential(-87.4F), 0.0F);  // below ln(FLT_MIN)
  EXPECT_EQ(Exponential(-3.4e38F), 0.0F);
  EXPECT_GT(Exponential(-87.3F), 0.0F);
  EXPECT_TRUE(std::isnan(Exponential(kNan)));
}

TEST(SoftmaxTest, SoftCapIsCloseEverywhere) {
  for (const float cap : {0.5F, 1.0F, 50.0F, 1e-30F, 3e38F}) {
    std::vector<float> scores = {0.0F, -0.0F, kInfinity, -kInfinity, kNan, 3e38F, 0.85F, -1e-30F};
    for (double x = 1e-6; x < 20; x *= 1.01) {
      scores.push_back(static_cast<float>(x) * cap);
      scores.push_back(static_cast<float>(-x) * cap);
    }
    std::vector<float> capped = scores;
    SoftCapRow(capped.data(), cap, static_cast<std::int64_t>(capped.size()));
    for (std::size_t n = 0; n < scores.size(); ++n) {
      const double want = cap * std::tanh(double{scores[n]} / cap);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(capped[n]));
      } else {
        EXPECT_NEAR(capped[n], want, std::abs(want) * 0x1p-21) << scores[n] << " cap " << cap;
      }
    }
  }
}

TEST(SoftmaxTest, StepsMergeLikeOneRow) {
  // ln(1 + 2 + 3 + 4) and the weights 0.1, 0.2, 0.3, 0.4, from logits ln 1 ... ln 4 in two tiles.
  std::vector<float> first(kSoftmaxColumnsStep, -kInfinity), second = first;
  first[0] = std::log(1.0F);
  first[1] = std::log(2.0F);
  second[0] = std::log(3.0F);
  second[1] = std::log(4.0F);
  float m = -kInfinity, l = 0, alpha = 0;
  SoftmaxStep({first.data(), kSoftmaxColumnsStep, 1, kSoftmaxColumnsStep, kLog2E}, &m, &l, &alpha);
  EXPECT_EQ(alpha, 0.0F);
  SoftmaxStep({second.data(), kSoftmaxColumnsStep, 1, kSoftmaxColumnsStep, kLog2E}, &m, &l, &alpha);
  EXPECT_NEAR(alpha, 0.5, 1e-7);
  EXPECT_NEAR(m + std::log(l), std::log(10.0), 1e-6);
  std::vector<float> weights = {std::log(1.0F), std::log(2.0F), std::log(3.0F), std::log(4.0F), -kInfinity};
  WeightsRow(weights.data(), m, l, kLog2E, 5);
  for (int n = 0; n < 4; ++n) EXPECT_NEAR(weights[static_cast<std::size_t>(n)], (n + 1) / 10.0, 1e-7);
  EXPECT_EQ(weights[4], 0.0F);
}

TEST(SoftmaxTest, NothingAllowedYetLeavesNoTrace) {
  std::vector<float> row(kSoftmaxColumnsStep, -kInfinity);
  float m = -kInfinity, l = 0, alpha = 1;
  SoftmaxStep({row.data(), kSoftmaxColumnsStep, 1, kSoftmaxColumnsStep, kLog2E}, &m, &l, &alpha);
  EXPECT_EQ(m, -kInfinity);
  EXPECT_EQ(l, 0.0F);
  EXPECT_EQ(row[7], 0.0F);
}

TEST(SoftmaxTest, ExclusionIsBySelection) {
  for (const std::int64_t columns : {1, 7, 16, 33}) {
    std::vector<float> scores(static_cast<std::size_t>(columns), kNan), bias(static_cast<std::size_t>(columns), 1.0F);
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(columns), 1);
    mask.back() = 0;
    ExcludeMasked(scores.data(), mask.data(), columns);
    EXPECT_EQ(scores.back(), -kInfinity);
    EXPECT_TRUE(columns == 1 || std::isnan(scores.front()));
    std::fill(scores.begin(), scores.end(), kInfinity);
    bias.back() = -kInfinity;
    ExcludeByBias(scores.data(), bias.data(), columns);
    EXPECT_EQ(scores.back(), -kInfinity);
    EXPECT_TRUE(columns == 1 || scores.front() == kInfinity);
  }
}

TEST(SoftmaxTest, DivisionReportsWhatIsNotFinite) {
  std::vector<float> values(37, 3.0F);
  EXPECT_TRUE(DivideRow(values.data(), 2.0F, 37));
  EXPECT_EQ(values[36], 1.5F);
  values[36] = kInfinity;
  EXPECT_FALSE(DivideRow(values.data(), 2.0F, 37));
  values[36] = 1;
  values[2] = kNan;
  EXPECT_FALSE(DivideRow(values.data(), 2.0F, 37));
}

}  // namespace
}  // namespace attnd
