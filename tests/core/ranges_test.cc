// Sequences of a few queries whose keys are cut into ranges: the joined answer against the reference, its bytes over
// threads and batch mates, and what one range must not do to another.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/tile_plan.h"
#include "core/tiling.h"
#include "tests/core/compare.h"
#include "tests/core/random_problem.h"

namespace attnd {
namespace {

constexpr std::int64_t kWidth = 1024;  // of keys and of values: 256 keys a range
static_assert(RangeKeys(kWidth, kWidth) == 256);

TEST(RangesTest, AFewQueriesOverManyKeysAreCutByTheirOwnLengths) {
  ProblemInputs inputs = ShapedInputs({5, 2, 6, kWidth}, {5, 2, 700, kWidth}, {5, 2, 700, kWidth});
  inputs.options.q_len = {1, 4, 5, 1, 0};
  inputs.options.kv_len = {700, 257, 700, 256, 700};
  const absl::StatusOr<Problem> problem = Problem::Create(inputs, {});
  ASSERT_TRUE(problem.ok()) << problem.status();
  const std::int64_t expected[] = {3, 2, 0, 0, 0};
  for (std::int64_t b = 0; b < 5; ++b) EXPECT_EQ(Ranges(*problem, b), expected[b]) << b;
}

TEST(RangesTest, MatchTheReferenceOverAllOptionsAndAnyThreads) {
  std::mt19937 generator(1);
  const Pick pick = PickFrom(generator);
  Executor one(1), three(3);
  for (int round = 0; round < 10; ++round) {
    SCOPED_TRACE(round);
    TensorStore store;
    const std::int64_t kv_heads = pick(1, 2);
    const Shape shape{pick(1, 2), kv_heads * pick(1, 3), kv_heads, pick(1, 4), pick(400, 900), kWidth, kWidth};
    const ProblemInputs inputs = RandomProblem(pick, shape, store);
    if (inputs.x.has_value()) continue;  // a query for every key
    EXPECT_EQ(DifferenceFromReference(inputs), "");
    EXPECT_EQ(Answer(inputs, one).answer.tensors, Answer(inputs, three).answer.tensors);
  }
}

// Row 0 of every sequence and head, as float32.
std::vector<double> FirstRow(const Answered& answered, std::int64_t b) {
  std::vector<double> row;
  for (std::int64_t c = 0; c < kWidth; ++c) row.push_back(answered.At(OutputKind::kOutput, b, 0, 0, c));
  return row;
}

TEST(RangesTest, ASequenceHasTheBytesItHasAlone) {
  std::mt19937 generator(2);
  TensorStore store;
  ProblemInputs both = RandomInputs({2, 1, 1, 1, 600, kWidth, kWidth}, store, generator);
  both.options.kv_len = {600, 200};
  const Answered together = Answer(both);
  for (std::int64_t b = 0; b < 2; ++b) {
    ProblemInputs alone = both;
    for (std::optional<InputTensor>* const tensor : {&alone.q, &alone.k, &alone.v}) {
      (*tensor)->data += b * (*tensor)->shape[2] * kWidth * ElementBytes((*tensor)->dtype);
      (*tensor)->shape[0] = 1;
    }
    alone.options.kv_len = {both.options.kv_len[static_cast<std::size_t>(b)]};
    EXPECT_EQ(FirstRow(Answer(alone), 0), FirstRow(together, b)) << b;
  }
}

// Every score 0, so that every allowed key weighs the same.
struct Uniform {
  explicit Uniform(std::int64_t keys) : values(static_cast<std::size_t>(keys * kWidth), 1.0) {}

  Answered Run() {
    inputs.q = store.Filled({1, 1, 1, kWidth}, 0, DType::kFloat32);
    inputs.k = store.Filled({1, 1, static_cast<std::int64_t>(values.size()) / kWidth, kWidth}, 1, DType::kFloat32);
    inputs.v = store.Floats(inputs.k->shape, values, DType::kFloat32);
    inputs.outputs = {OutputKind::kLse};
    return Answer(inputs);
  }

  TensorStore store;
  ProblemInputs inputs;
  std::vector<double> values;
};

TEST(RangesTest, ARangeThatNobodyMaySeeDoesNotCount) {
  constexpr std::int64_t kKeys = 1024;
  for (std::int64_t hidden = 0; hidden < 4; ++hidden) {
    Uniform uniform(kKeys);
    std::vector<int> mask(kKeys, 1);
    std::fill_n(mask.begin() + hidden * 256, 256, 0);
    uniform.inputs.options.mask = uniform.store.Bools({kKeys}, mask);
    for (std::int64_t n = 0; n < 256; ++n) {
      uniform.values[static_cast<std::size_t>((hidden * 256 + n) * kWidth + n)] = std::nan("");
    }
    const Answered answered = uniform.Run();
    EXPECT_EQ(FirstRow(answered, 0), std::vector<double>(kWidth, 1.0)) << hidden;
    EXPECT_EQ(answered.At(OutputKind::kLse, 0, 0, 0, 0), static_cast<double>(std::log(768.0F))) << hidden;
    EXPECT_EQ(answered.answer.nonfinite_rows, 0);
  }
}

TEST(RangesTest, ANaNThatMayBeSeenTouchesItsColumnOnly) {
  Uniform uniform(700);
  uniform.values[600 * kWidth + 3] = std::nan("");
  const std::vector<double> row = FirstRow(uniform.Run(), 0);
  EXPECT_TRUE(std::isnan(row[3]));
  EXPECT_EQ(row[2], 1.0);
  EXPECT_EQ(row[4], 1.0);
}

TEST(RangesTest, ASinkCountsOnce) {
  Uniform uniform(600);
  uniform.inputs.options.sinks = {std::log(200.0F)};
  const Answered answered = uniform.Run();
  EXPECT_NEAR(FirstRow(answered, 0)[0], 600.0 / 800.0, 1e-6);
  EXPECT_NEAR(answered.At(OutputKind::kLse, 0, 0, 0, 0), std::log(800.0), 1e-5);
}

TEST(RangesTest, NothingToSeeIsAnEmptyRow) {
  Uniform uniform(600);
  uniform.inputs.options.mask = uniform.store.Bools({1}, {0});
  const Answered answered = uniform.Run();
  EXPECT_EQ(FirstRow(answered, 0), std::vector<double>(kWidth, 0.0));
  EXPECT_EQ(answered.At(OutputKind::kLse, 0, 0, 0, 0), -std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace attnd
