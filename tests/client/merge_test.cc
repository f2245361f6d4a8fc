#include "client/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace attnd::client {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Answer Part(const std::vector<float>& output, const std::vector<float>& lse) {
  const auto rows = static_cast<std::int64_t>(lse.size());
  Answer answer;
  answer.output = Array::Of({1, 1, rows, static_cast<std::int64_t>(output.size()) / rows}, output);
  answer.extras.emplace_back(v1::OUTPUT_KIND_LSE, Array::Of({1, 1, rows}, lse));
  return answer;
}

// Row 0: the keys 1 and 2 with values 10 and 20 under the query 1. Rows 1, 2: one part is empty. Row 3: both are.
TEST(MergeTest, PartsGiveTheWhole) {
  const auto none = -static_cast<float>(kInfinity);
  const absl::StatusOr<Answer> merged =
      MergeAnswers(Part({10, 0, 5, 0}, {1, none, 3, none}), Part({20, 7, 0, 0}, {2, 2, none, none}));
  ASSERT_TRUE(merged.ok()) << merged.status();
  const Array& lse = *merged->Find(v1::OUTPUT_KIND_LSE);
  EXPECT_NEAR(merged->output.At(0), 17.3105857863, 2e-6);
  EXPECT_NEAR(lse.At(0), 2.313261687518223, 3e-7);
  EXPECT_EQ(merged->output.At(1), 7);
  EXPECT_EQ(lse.At(1), 2);
  EXPECT_EQ(merged->output.At(2), 5);
  EXPECT_EQ(lse.At(2), 3);
  EXPECT_EQ(merged->output.At(3), 0);
  EXPECT_EQ(lse.At(3), -kInfinity);
}

TEST(MergeTest, NanStaysNan) {
  const absl::StatusOr<Answer> merged = MergeAnswers(Part({1}, {NAN}), Part({2}, {1}));
  ASSERT_TRUE(merged.ok());
  EXPECT_TRUE(std::isnan(merged->output.At(0)));
}

TEST(MergeTest, RefusesWhatDoesNotBelongTogether) {
  Answer bare = Part({1}, {1});
  bare.extras.clear();
  EXPECT_EQ(std::string(MergeAnswers(Part({1}, {1}), bare).status().message()),
            "merge: an answer came without OUTPUT_KIND_LSE, expected it in both");
  EXPECT_EQ(std::string(MergeAnswers(Part({1, 2}, {1}), Part({1}, {1})).status().message()),
            "merge: output [1,1,1,1] with lse [1,1,1], expected [1,1,1,2] with lse [1,1,1] as in the first answer");
}

}  // namespace
}  // namespace attnd::client
