#include "core/cost.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/reference.h"
#include "tests/core/inputs.h"

namespace attnd {
namespace {

constexpr std::int64_t kMebi = std::int64_t{1} << 20;
constexpr std::int64_t kGibi = std::int64_t{1} << 30;

Problem SelfAttention(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t width) {
  const std::vector<std::int64_t> shape = {batch, heads, rows, width};
  return Made(ShapedInputs(shape, shape, shape));
}

TEST(Cost, GivesEveryFigureOfTheLesson) {
  const Cost scores = EstimateCost(SelfAttention(1, 1, 4096, 128)).value();
  EXPECT_EQ(scores.score_multiply_adds_per_head, 2147483648);  // 2.1e9
  EXPECT_EQ(scores.naive_score_bytes_per_head, 64 * kMebi);
  EXPECT_EQ(EstimateCost(SelfAttention(1, 32, 4096, 128), 32)->naive_score_bytes, 64 * kGibi);
  EXPECT_EQ(EstimateCost(SelfAttention(1, 1, 128000, 128))->scores_per_head, 16384000000);      // 1.64e10
  EXPECT_EQ(EstimateCost(SelfAttention(1, 1, 131072, 128))->scores_per_head, 17179869184);      // 1.72e10
  EXPECT_EQ(EstimateCost(SelfAttention(1, 1, 2048, 128))->multiply_adds_per_head, 1073741824);  // 1.07e9
  EXPECT_EQ(EstimateCost(SelfAttention(1, 96, 2048, 128), 96)->multiply_adds, 9895604649984);   // 9.9e12
  EXPECT_EQ(EstimateCost(SelfAttention(1, 1, 4096, 64))->flops, 4 * EstimateCost(SelfAttention(1, 1, 2048, 64))->flops);
  EXPECT_EQ(EstimateCost(SelfAttention(1, 1, 131072, 64))->flops,
            1024 * EstimateCost(SelfAttention(1, 1, 4096, 64))->flops);  // 4K to 128K
}

TEST(Cost, NamesTheTiledModesMemory) {
  ProblemInputs inputs = ShapedInputs({2, 6, 130, 40}, {2, 3, 300, 40}, {2, 3, 300, 24});
  inputs.v->dtype = DType::kBFloat16;
  inputs.outputs = {OutputKind::kWeights, OutputKind::kLse};
  const Cost cost = EstimateCost(Made(inputs)).value();
  EXPECT_EQ(cost.input_bytes, 2 * 6 * 130 * 40 * 4 + 2 * 3 * 300 * 40 * 4 + 2 * 3 * 300 * 24 * 2);
  EXPECT_EQ(cost.packed_k_bytes, 2 * 3 * 544 * 40 * 4);  // 300 keys fill two tiles of 256, whose rows are 272 apart
  EXPECT_EQ(cost.packed_v_bytes, 2 * 3 * 300 * 24 * 4);
  EXPECT_EQ(cost.projected_bytes, 0);
  EXPECT_EQ(cost.row_state_bytes, 8 * 2 * 6 * 130);
  EXPECT_EQ(cost.output_bytes, 2 * 6 * 130 * 24 * 4);
  EXPECT_EQ(cost.reply_bytes, cost.output_bytes + 2 * 6 * 130 * 4 * (300 + 1));
  EXPECT_EQ(cost.tiles, 2 * 6 * 2 * 2);

  inputs.v->dtype = DType::kFloat32;
  inputs.outputs.clear();
  const Cost plain = EstimateCost(Made(inputs)).value();
  EXPECT_EQ(plain.packed_v_bytes, 0);
  EXPECT_EQ(plain.row_state_bytes, 0);
  EXPECT_EQ(plain.reply_bytes, plain.output_bytes);
}

TEST(Cost, ValuesInPagesArePackedWhereKeysAre) {
  ProblemInputs inputs = ShapedInputs({2, 6, 5, 40}, {4, 3, 100, 40}, {4, 3, 100, 24});
  inputs.options.page_table = Shaped({2, 3}, DType::kInt64);  // 300 keys each
  const Cost cost = EstimateCost(Made(inputs)).value();
  EXPECT_EQ(cost.input_bytes, 4 * (2 * 6 * 5 * 40 + 4 * 3 * 100 * (40 + 24)) + 8 * 2 * 3);
  EXPECT_EQ(cost.packed_k_bytes, 2 * 3 * 544 * 40 * 4);
  EXPECT_EQ(cost.packed_v_bytes, 2 * 3 * 300 * 24 * 4);
  EXPECT_EQ(cost.multiply_adds, 2 * 6 * 5 * 300 * (40 + 24));
  inputs.q->shape[2] = 1;  // read in place
  EXPECT_EQ(EstimateCost(Made(inputs))->packed_k_bytes, 0);
  EXPECT_EQ(EstimateCost(Made(inputs))->packed_v_bytes, 0);
}

TEST(Cost, ScratchOfATileDoesNotGrowWithTheSequence) {
  EXPECT_EQ(EstimateCost(SelfAttention(1, 1, 1024, 64))->scratch_bytes_per_thread,
            EstimateCost(SelfAttention(1, 1, 131072, 64))->scratch_bytes_per_thread);
  EXPECT_GT(EstimateCost(SelfAttention(1, 1, 1024, 64))->scratch_bytes_per_thread, 0);
}

ProblemInputs WithX() {
  ProblemInputs inputs;
  inputs.x = Shaped({2, 30, 10});
  ProjectionInputs& projection = inputs.projection.emplace();
  projection.q_heads = 4;
  projection.kv_heads = 2;
  projection.w_q = Shaped({10, 32});
  projection.w_k = Shaped({10, 16});
  projection.w_v = Shaped({10, 12});
  return inputs;
}

TEST(Cost, CountsProjections) {
  ProblemInputs inputs = WithX();
  const Cost cost = EstimateCost(Made(inputs)).value();
  const std::int64_t attention = 2 * 4 * 30 * 30 * (8 + 6), projections = 2 * 30 * 10 * (32 + 16 + 12);
  EXPECT_EQ(cost.multiply_adds, attention + projections);
  EXPECT_EQ(cost.projected_bytes, 2 * 30 * (32 + 16 + 12) * 4);
  EXPECT_EQ(cost.packed_v_bytes, 0);  // projected v is float32 already

  inputs.projection->w_o = Shaped({24, 7});
  const Cost with_o = EstimateCost(Made(inputs), 3).value();
  EXPECT_EQ(with_o.multiply_adds, 3 * (attention + projections + 2 * 30 * 24 * 7));
  EXPECT_EQ(with_o.projected_bytes, 2 * 30 * (32 + 16 + 12 + 24) * 4);
  EXPECT_EQ(with_o.output_bytes, 2 * 30 * 7 * 4);
  EXPECT_EQ(with_o.flops_after_exclusion, with_o.flops);
}

TEST(Cost, ReferenceModeIsChargedWhatTheReferenceAllocates) {
  ProblemInputs inputs = WithX();
  inputs.options.reference = true;
  inputs.outputs = {OutputKind::kWeights};
  const Cost cost = EstimateCost(Made(inputs)).value();
  EXPECT_EQ(cost.projected_bytes, 2 * 30 * (32 + 16 + 12) * 8);
  EXPECT_EQ(cost.projected_bytes, Reference::PreparedBytes(Made(inputs)));
  EXPECT_EQ(cost.packed_k_bytes, 0);
  EXPECT_EQ(cost.packed_v_bytes, 0);
  EXPECT_EQ(cost.row_state_bytes, 0);
  inputs.projection->w_o = Shaped({24, 7});
  EXPECT_EQ(EstimateCost(Made(inputs))->projected_bytes, 2 * 30 * (32 + 16 + 12 + 24) * 8);  // and what w_o multiplies
  inputs.projection->w_o.reset();
  inputs.options.rotary.emplace().rotary_dim = 4;
  EXPECT_EQ(EstimateCost(Made(inputs))->projected_bytes, 2 * 30 * (2 * 32 + 2 * 16 + 12) * 8);
  EXPECT_EQ(EstimateCost(Made(inputs))->projected_bytes, Reference::PreparedBytes(Made(inputs)));
}

// The closed form against counting key by key.
TEST(Cost, FlopsAfterExclusionCountWhatIsVisible) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t left : {-1, 0, 3, 100}) {
      for (const std::int64_t right : {-1, 0, 2, 100}) {
        for (const std::int64_t offset : {-20, -3, 0, 1, 5, 40}) {
          ProblemInputs inputs = ShapedInputs({3, 2, 7, 5}, {3, 1, 11, 5}, {3, 1, 11, 4});
          inputs.options.causal = causal;
          if (left >= 0) inputs.options.window_left = left;
          if (right >= 0) inputs.options.window_right = right;
          inputs.options.q_offset = {offset, -offset, 0};
          inputs.options.q_len = {7, 4, 0};
          inputs.options.kv_len = {11, 6, 0};
          const Problem problem = Made(inputs);
          std::int64_t pairs = 0;
          for (std::int64_t b = 0; b < 3; ++b) {
            for (std::int64_t i = 0; i < problem.q_len[b]; ++i) {
              for (std::int64_t j = 0; j < problem.kv_len[b]; ++j) {
                const std::int64_t p = i + problem.q_offset[b];
                pairs += (!causal || j <= p) && (left < 0 || j >= p - left) && (right < 0 || j <= p + right);
              }
            }
          }
          ASSERT_EQ(EstimateCost(problem, 5)->flops_after_exclusion, 5 * 2 * 2 * pairs * (5 + 4))
              << causal << " " << left << " " << right << " " << offset;
        }
      }
    }
  }
}

TEST(Cost, ExclusionOfAMillionRowsIsArithmetic) {
  ProblemInputs inputs = ShapedInputs({1, 1, kMebi, 1}, {1, 1, kMebi, 1}, {1, 1, kMebi, 1});
  inputs.options.causal = true;
  EXPECT_EQ(EstimateCost(Made(inputs))->flops_after_exclusion,
            2 * kMebi * (kMebi + 1));  // 2 * (d_k + d_v) * N (N + 1) / 2
  inputs.options.window_left = std::numeric_limits<std::int64_t>::max();
  inputs.options.window_right = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(EstimateCost(Made(inputs))->flops_after_exclusion, 2 * kMebi * (kMebi + 1));
}

TEST(Cost, WhatCannotBeCountedIsRefused) {
  EXPECT_EQ(EstimateCost(SelfAttention(1, 1, 16, 8), 0).status().message(), "layers: 0, expected at least 1");
  EXPECT_EQ(EstimateCost(SelfAttention(1, 1, 16, 8), -1).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status layers = EstimateCost(SelfAttention(1, 1, 4096, 128), std::int64_t{1} << 40).status();
  EXPECT_EQ(layers.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(layers.message(), "problem: its multiply-adds or bytes do not fit a signed 64-bit integer");
  EXPECT_EQ(EstimateCost(SelfAttention(1, 1, kMebi * 64, 1024)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Cost, EmptyProblemsCostNothing) {
  const Cost no_batch = EstimateCost(SelfAttention(0, 2, 16, 8)).value();
  EXPECT_EQ(no_batch.multiply_adds, 0);
  EXPECT_EQ(no_batch.multiply_adds_per_head, 16 * 16 * 16);
  EXPECT_EQ(no_batch.reply_bytes, 0);
  EXPECT_EQ(EstimateCost(SelfAttention(2, 2, 0, 8))->tiles, 0);
}

}  // namespace
}  // namespace attnd
