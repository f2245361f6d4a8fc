// Which way a problem is computed.
#include "core/tile_plan.h"

#include <gtest/gtest.h>

#include "tests/core/inputs.h"

namespace attnd {
namespace {

ProblemInputs Inputs(std::int64_t q_heads, std::int64_t kv_heads, std::int64_t q_rows, std::int64_t kv_rows,
                     std::int64_t d, DType dtype = DType::kFloat32) {
  ProblemInputs inputs = ShapedInputs({1, q_heads, q_rows, d}, {1, kv_heads, kv_rows, d}, {1, kv_heads, kv_rows, d});
  inputs.q->dtype = inputs.k->dtype = inputs.v->dtype = dtype;
  return inputs;
}

TEST(TilePlanTest, BfloatPairsNeedTheMachineBothOperandsAsTheyCameAndAnEvenWidth) {
  const ProblemInputs both = Inputs(2, 2, 8, 300, 64, DType::kBFloat16);
  EXPECT_TRUE(TakesPairs(Made(both), true));
  EXPECT_FALSE(TakesPairs(Made(both), false));
  EXPECT_FALSE(TakesPairs(Made(Inputs(2, 2, 8, 300, 63, DType::kBFloat16)), true));
  EXPECT_FALSE(TakesPairs(Made(Inputs(2, 2, 8, 300, 64, DType::kFloat16)), true));
  EXPECT_FALSE(TakesPairs(Made(Inputs(2, 2, 8, 300, 64)), true));
  ProblemInputs one = both;
  one.q->dtype = DType::kFloat32;
  EXPECT_FALSE(TakesPairs(Made(one), true));
  ProblemInputs turned = both;
  turned.options.rotary.emplace().rotary_dim = 64;
  turned.options.q_offset = {0};
  EXPECT_FALSE(TakesPairs(Made(turned), true));
}

TEST(TilePlanTest, FewQueriesOrFewPairsAreReadInPlace) {
  const auto in_place = [](std::int64_t q_rows, std::int64_t kv_rows) {
    return InPlace(Made(Inputs(1, 1, q_rows, kv_rows, 8)), 0);
  };
  EXPECT_TRUE(in_place(4, 100000));
  EXPECT_FALSE(in_place(5, 13));
  EXPECT_TRUE(in_place(5, 12));
  EXPECT_TRUE(in_place(64, 1));
  EXPECT_FALSE(in_place(65, 1));
  EXPECT_TRUE(in_place(65, 0));
}

TEST(TilePlanTest, PacksAheadOnlyWhatSeveralUnitsShare) {
  EXPECT_FALSE(PacksAhead(Made(Inputs(8, 8, 128, 512, 64))));
  EXPECT_TRUE(PacksAhead(Made(Inputs(8, 8, 129, 512, 64))));
  EXPECT_TRUE(PacksAhead(Made(Inputs(8, 4, 128, 512, 64))));
  EXPECT_FALSE(PacksAhead(Made(Inputs(8, 4, 4, 512, 64))));
  ProblemInputs weights = Inputs(8, 8, 128, 512, 64);
  weights.outputs = {OutputKind::kWeights};
  EXPECT_TRUE(PacksAhead(Made(weights)));
}

}  // namespace
}  // namespace attnd
