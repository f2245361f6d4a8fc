#include "core/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/tensor.h"

namespace attnd {
namespace {

std::vector<float> Normal(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

constexpr float kGuard = 12345;  // what C holds before

// c is the sum over depth of term(row, column, depth), on top of the guard with add_c, and the guard beyond column n.
template <class Term>
void ExpectProduct(const GemmShape& shape, const std::vector<float>& c, Term term) {
  for (std::int64_t row = 0; row < shape.m; ++row) {
    for (std::int64_t column = 0; column < shape.ldc; ++column) {
      const float got = c[static_cast<std::size_t>(row * shape.ldc + column)];
      if (column >= shape.n) {
        ASSERT_EQ(got, kGuard);
        continue;
      }
      double want = shape.add_c ? kGuard : 0, magnitude = std::abs(want);
      for (std::int64_t depth = 0; depth < shape.k; ++depth) {
        want += term(row, column, depth);
        magnitude += std::abs(term(row, column, depth));
      }
      ASSERT_NEAR(got, want, magnitude * static_cast<double>(shape.k + 1) * 0x1p-24)
          << shape.m << " " << shape.n << " " << shape.k;
    }
  }
}

TEST(GemmTest, MatchesFloat64AndWritesNothingElse) {
  for (const std::int64_t m : {1, 3, 8, 17}) {
    for (const std::int64_t n : {1, 5, 16, 33, 520}) {
      for (const std::int64_t k : {1, 7, 64, 513}) {
        const std::int64_t lda = k + 3, ldb = n + 5, ldc = n + 2;
        const std::vector<float> a = Normal(m * lda, 1), b = Normal(k * ldb, 2);
        for (const bool add_c : {false, true}) {
          std::vector<float> c(static_cast<std::size_t>(m * ldc), kGuard);
          Gemm({m, n, k, lda, ldb, ldc, add_c}, a.data(), b.data(), c.data());
          ExpectProduct({m, n, k, lda, ldb, ldc, add_c}, c,
                        [&](std::int64_t row, std::int64_t column, std::int64_t depth) {
                          return double{a[static_cast<std::size_t>(row * lda + depth)]} *
                                 b[static_cast<std::size_t>(depth * ldb + column)];
                        });
        }
      }
    }
  }
}

std::vector<std::byte> Bfloat16(const std::vector<float>& values) {
  std::vector<std::byte> stored(values.size() * 2);
  for (std::size_t n = 0; n < values.size(); ++n) StoreFromDouble(DType::kBFloat16, values[n], stored.data() + 2 * n);
  return stored;
}

// On a machine without such kernels it is the plain loop that has to be right.
TEST(GemmTest, PairsMatchFloat64AndWriteNothingElse) {
  for (const std::int64_t m : {1, 3, 17}) {
    for (const std::int64_t n : {1, 5, 33, 256, 520}) {
      for (const std::int64_t k : {2, 6, 64, 514, 1030}) {
        const std::int64_t lda = k + 4, ldb = n + 5, ldc = n + 2;
        const std::vector<std::byte> a = Bfloat16(Normal(m * lda, 1)), b = Bfloat16(Normal(k * ldb, 2));
        const auto at = [](const std::vector<std::byte>& values, std::int64_t index) {
          return LoadAsDouble(DType::kBFloat16, values.data() + 2 * index);
        };
        std::vector<float> pairs(static_cast<std::size_t>(k / 2 * ldb));
        std::memcpy(pairs.data(), b.data(), pairs.size() * sizeof(float));
        std::vector<float> c(static_cast<std::size_t>(m * ldc), kGuard);
        GemmPairs({m, n, k, lda, ldb, ldc, false, true}, a.data(), pairs.data(), c.data());
        ExpectProduct({m, n, k, lda, ldb, ldc}, c, [&](std::int64_t row, std::int64_t column, std::int64_t depth) {
          return at(a, row * lda + depth) * at(b, 2 * (depth / 2 * ldb + column) + depth % 2);
        });
      }
    }
  }
}

// By the numbers that oneDNN's documentation gives its instruction sets.
TEST(GemmTest, PairsAreTakenFromAvx512WithBfloat16On) {
  constexpr unsigned kAvx2 = 0x7, kAvx2Vnni2 = 0x1f, kAvx512 = 0x27, kAvx512Vnni = 0x67;
  for (const unsigned narrow : {kAvx2, kAvx2Vnni2, kAvx512, kAvx512Vnni}) EXPECT_FALSE(HasPairProducts(narrow));
  constexpr unsigned kAvx512Bf16 = 0xe7, kAvx512Fp16 = 0x1ef, kAmx = 0xfef, kAmxFp16 = 0x1fef;
  for (const unsigned wide : {kAvx512Bf16, kAvx512Fp16, kAmx, kAmxFp16}) EXPECT_TRUE(HasPairProducts(wide));
}

// Tiles may be cut anywhere because of this.
TEST(GemmTest, ARowsBytesDoNotDependOnItsNeighbours) {
  constexpr std::int64_t kRowsMax = 64, kStride = 272;
  const std::vector<float> a = Normal(kRowsMax * kStride, 3), b = Normal(kStride * kStride, 4);
  const std::vector<float> before = Normal(kRowsMax * kStride, 5);
  for (const std::int64_t columns : {1, 17, 96, 256}) {
    for (const std::int64_t depth : {1, 80, 256}) {
      for (const bool add_c : {false, true}) {
        std::vector<float> alone = before;
        for (std::int64_t row = 0; row < kRowsMax; ++row) {
          Gemm({1, columns, depth, depth, kStride, columns, add_c}, a.data() + row * kStride, b.data(),
               alone.data() + row * kStride);
        }
        for (std::int64_t rows = 2; rows <= kRowsMax; ++rows) {
          std::vector<float> together = before;
          Gemm({rows, columns, depth, kStride, kStride, kStride, add_c}, a.data(), b.data(), together.data());
          ASSERT_EQ(std::memcmp(together.data(), alone.data(), static_cast<std::size_t>(rows * kStride) * 4), 0)
              << rows << " rows, " << columns << " columns, depth " << depth << (add_c ? ", added" : "");
        }
      }
    }
  }
}

TEST(GemmTest, KeepsAtMostAsManyKernelsAsAllowed) {
  SetGemmCacheMax(4);
  const std::vector<float> ones(64, 1.0F);
  for (std::int64_t n = 1; n <= 40; ++n) {
    std::vector<float> c(static_cast<std::size_t>(n));
    Gemm({1, n, 1, 1, n, n, false}, ones.data(), ones.data(), c.data());
    EXPECT_EQ(c.back(), 1.0F);
    EXPECT_LE(GemmCacheSize(), 4);
  }
  SetGemmCacheMax(1024);
}

}  // namespace
}  // namespace attnd
