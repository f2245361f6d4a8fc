#include "core/pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace attnd {
namespace {

// Every 16-bit pattern widens to what the float64 route says, and back to itself (NaN to the canonical one).
TEST(PackTest, AllSixteenBitValuesRoundTrip) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<std::uint16_t> bits(65536);
    for (std::size_t n = 0; n < bits.size(); ++n) bits[n] = static_cast<std::uint16_t>(n);
    const auto* const bytes = reinterpret_cast<const std::byte*>(bits.data());
    std::vector<float> wide(bits.size());
    WidenToFloat(dtype, bytes, 65536, wide.data());
    std::vector<std::uint16_t> back(bits.size());
    EXPECT_FALSE(NarrowFromFloat(dtype, wide.data(), 65536, reinterpret_cast<std::byte*>(back.data())));
    for (std::size_t n = 0; n < bits.size(); ++n) {
      const double want = LoadAsDouble(dtype, bytes + 2 * n);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(wide[n])) << n;
        ASSERT_EQ(back[n], dtype == DType::kFloat16 ? 0x7E00 : 0x7FC0) << n;
      } else {
        ASSERT_EQ(wide[n], want) << n;
        ASSERT_EQ(back[n], bits[n]) << n;
      }
    }
  }
}

TEST(PackTest, NarrowingRoundsToNearestEven) {
  std::vector<float> values;
  for (int n = 0; n < 4000; ++n) values.push_back(std::ldexp(1.0F + static_cast<float>(n) * 0x1.0p-13F, n % 40 - 25));
  values.insert(values.end(), {65504.0F, 65519.0F, 65520.0F, 3.39e38F, 0.0F, -0.0F});
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<std::byte> got(values.size() * 2), want(values.size() * 2);
    NarrowFromFloat(dtype, values.data(), static_cast<std::int64_t>(values.size()), got.data());
    for (std::size_t n = 0; n < values.size(); ++n) {
      StoreFromDouble(dtype, values[n], want.data() + 2 * n);
      ASSERT_EQ(std::memcmp(got.data() + 2 * n, want.data() + 2 * n, 2), 0) << values[n];
    }
  }
}

TEST(PackTest, Float32NanBecomesCanonical) {
  const std::uint32_t bits[] = {0xFFC12345U, 0x7F812345U, 0x3F800000U};
  float values[3];
  std::memcpy(values, bits, sizeof(values));
  std::uint32_t stored[3];
  EXPECT_FALSE(NarrowFromFloat(DType::kFloat32, values, 3, reinterpret_cast<std::byte*>(stored)));
  EXPECT_EQ(stored[0], 0x7FC00000U);
  EXPECT_EQ(stored[1], 0x7FC00000U);
  EXPECT_EQ(stored[2], 0x3F800000U);
  EXPECT_TRUE(NarrowFromFloat(DType::kFloat32, values + 2, 1, reinterpret_cast<std::byte*>(stored)));
}

TEST(PackTest, TransposesAnyShape) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const std::int64_t rows : {1, 3, 4, 9, 64}) {
      for (const std::int64_t columns : {1, 4, 6, 31, 300}) {
        const std::int64_t stride = columns + 2, target_stride = rows + 3;
        std::vector<std::byte> source(static_cast<std::size_t>(rows * stride * ElementBytes(dtype)));
        for (std::int64_t n = 0; n < rows * stride; ++n)
          StoreFromDouble(dtype, static_cast<double>(n % 251), source.data() + n * ElementBytes(dtype));
        std::vector<float> target(static_cast<std::size_t>(columns * target_stride), -1.0F);
        PackTransposed(dtype, source.data(), stride, rows, columns, target.data(), target_stride);
        for (std::int64_t column = 0; column < columns; ++column) {
          for (std::int64_t row = 0; row < target_stride; ++row) {
            const double want = row < rows ? static_cast<double>((row * stride + column) % 251) : -1;
            ASSERT_EQ(target[static_cast<std::size_t>(column * target_stride + row)], want) << rows << " x " << columns;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnd
