// Sizes around every power of two at which a vector or a tile may end, each output against the float64 reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "tests/core/compare.h"
#include "tests/core/inputs.h"
#include "tests/core/random_problem.h"

namespace attnd {
namespace {

constexpr std::int64_t kEdges[] = {1,  7,  8,   9,   15,  16,  17,  31,  32,  33,  63,
                                   64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513};

// Each way that K and V are met: packed or in place (by q_len), in each float type.
void ExpectLikeReference(const Shape& s, DType dtype = DType::kFloat32, bool causal = false) {
  SCOPED_TRACE(std::to_string(s.q_rows) + " rows, " + std::to_string(s.kv_rows) + " keys, widths " +
               std::to_string(s.d_k) + " and " + std::to_string(s.d_v) + (causal ? ", causal, " : ", ") +
               std::string(Name(dtype)));
  std::mt19937 generator(static_cast<std::uint32_t>(s.q_rows + s.kv_rows * 1000 + s.d_k * 7 + s.d_v * 13));
  TensorStore store;
  ProblemInputs inputs = RandomInputs(s, store, generator, dtype);
  inputs.options.causal = causal;
  inputs.options.output_dtype = DType::kFloat32;
  EXPECT_EQ(DifferenceFromReference(WithEveryOutput(inputs)), "");
}

TEST(AttentionEdgesTest, EveryNumberOfRows) {
  for (const std::int64_t rows : kEdges) {
    ExpectLikeReference({1, 2, 1, rows, 19, 6, 5});
    ExpectLikeReference({1, 2, 1, rows, 19, 6, 5}, DType::kBFloat16, /*causal=*/true);
  }
}

TEST(AttentionEdgesTest, EveryNumberOfKeys) {
  for (const std::int64_t keys : kEdges) {
    for (const std::int64_t rows : {1, 4, 6}) {  // up to four rows read K and V in place
      ExpectLikeReference({1, 2, 1, rows, keys, 6, 5});
      ExpectLikeReference({1, 2, 1, rows, keys, 6, 5}, DType::kFloat16, /*causal=*/true);
      ExpectLikeReference({1, 2, 1, rows, keys, 6, 5}, DType::kBFloat16);
    }
  }
}

TEST(AttentionEdgesTest, EveryWidthOfKeysAndValues) {
  for (const std::int64_t width : kEdges) {
    for (const std::int64_t rows : {1, 3, 6}) {
      for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        ExpectLikeReference({1, 1, 1, rows, 21, width, 5}, dtype);
        ExpectLikeReference({1, 1, 1, rows, 21, 6, width}, dtype);
      }
    }
  }
}

// Steps of 5 and 9 are prime to the 22 edges: each number of rows meets two of keys, and no two the same ones.
TEST(AttentionEdgesTest, RowsByKeys) {
  constexpr std::size_t kCount = std::size(kEdges);
  for (std::size_t n = 0; n < kCount; ++n) {
    ExpectLikeReference({1, 1, 1, kEdges[n], kEdges[n * 5 % kCount], 5, 3}, DType::kFloat32, n % 2 == 0);
    ExpectLikeReference({1, 1, 1, kEdges[n], kEdges[n * 9 % kCount], 5, 3}, DType::kBFloat16, n % 2 != 0);
  }
  for (const bool causal : {false, true}) {  // both just at, before and beyond several tiles
    for (const std::int64_t rows : {127, 128, 129}) {
      for (const std::int64_t keys : {255, 256, 257, 513}) {
        ExpectLikeReference({1, 1, 1, rows, keys, 5, 3}, DType::kFloat32, causal);
      }
    }
  }
}

TEST(AttentionEdgesTest, WidthsByWidths) {
  constexpr std::size_t kCount = std::size(kEdges);
  for (std::size_t n = 0; n < kCount; ++n) {
    for (const std::int64_t rows : {2, 9}) {
      ExpectLikeReference({1, 1, 1, rows, 12, kEdges[n], kEdges[n * 5 % kCount]}, DType::kFloat32, n % 2 == 0);
      ExpectLikeReference({1, 1, 1, rows, 12, kEdges[n], kEdges[n * 9 % kCount]}, DType::kFloat16, n % 2 != 0);
    }
  }
}

// Wider than the products' own blocks, and more keys and rows than two tiles with heads that are grouped.
TEST(AttentionEdgesTest, BeyondTheEdges) {
  for (const std::int64_t rows : {3, 33}) ExpectLikeReference({1, 1, 1, rows, 70, 1100, 1099});
  // Packed in strips, of which K and V have not the same number.
  ExpectLikeReference({1, 1, 1, 33, 70, 1100, 2100}, DType::kBFloat16);
  ExpectLikeReference({1, 1, 1, 33, 70, 2050, 30}, DType::kFloat16);
  ExpectLikeReference({2, 4, 2, 140, 530, 17, 33}, DType::kFloat32, /*causal=*/true);
}

// Weights of a cap that leaves nothing of any score are equal, so each output is the mean of 1, 2 and 6.
TEST(AttentionEdgesTest, ACapBelowEveryNormalNumberLeavesNoScore) {
  for (const double cap : {std::numeric_limits<double>::denorm_min(), 0x1p-1023, 0x1p-1022, 0x1p-149, 0x1p-126}) {
    for (const double scale : {0.0, 1.0}) {
      for (const bool reference : {false, true}) {
        TensorStore store;
        ProblemInputs inputs;
        inputs.q = store.Floats({1, 1, 1, 1}, {3}, DType::kFloat32);
        inputs.k = store.Floats({1, 1, 3, 1}, {-5, 0, 7}, DType::kFloat32);
        inputs.v = store.Floats({1, 1, 3, 1}, {1, 2, 6}, DType::kFloat32);
        inputs.options.softcap = cap;
        inputs.options.scale = scale;
        inputs.options.reference = reference;
        EXPECT_FLOAT_EQ(static_cast<float>(Answer(inputs).At(OutputKind::kOutput, 0, 0, 0, 0)), 3)
            << cap << (reference ? " by the reference" : " in tiles");
      }
    }
  }
}

// A cap beyond every score changes none: logits 0 and ln 2 weigh 1/3 and 2/3, so 0 and 3 become 2.
TEST(AttentionEdgesTest, ACapBeyondEveryScoreChangesNone) {
  for (const double cap : {0x1p30, 0x1p127, 0x1p128, 0x1p1022, std::numeric_limits<double>::max()}) {
    for (const bool reference : {false, true}) {
      TensorStore store;
      ProblemInputs inputs;
      inputs.q = store.Floats({1, 1, 1, 1}, {1}, DType::kFloat32);
      inputs.k = store.Floats({1, 1, 2, 1}, {0, std::log(2)}, DType::kFloat32);
      inputs.v = store.Floats({1, 1, 2, 1}, {0, 3}, DType::kFloat32);
      inputs.options.softcap = cap;
      inputs.options.reference = reference;
      EXPECT_NEAR(Answer(inputs).At(OutputKind::kOutput, 0, 0, 0, 0), 2, 1e-6)
          << cap << (reference ? " by the reference" : " in tiles");
    }
  }
}

}  // namespace
}  // namespace attnd
