#include "client/array.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace attnd::client {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Narrow {
  double value;
  std::uint16_t bits;
};

TEST(ArrayTest, Float16HasItsClosedValues) {
  const Narrow exact[] = {{0, 0x0000},     {-0.0, 0x8000},    {1, 0x3c00},       {-2, 0xc000},
                          {65504, 0x7bff}, {0x1p-14, 0x0400}, {0x1p-24, 0x0001}, {1023 * 0x1p-24, 0x03ff},
                          {kInf, 0x7c00},  {-kInf, 0xfc00}};
  for (const Narrow& one : exact) {
    EXPECT_EQ(DoubleToFloat16(one.value), one.bits) << one.value;
    EXPECT_EQ(Float16ToDouble(one.bits), one.value) << one.bits;
    EXPECT_EQ(std::signbit(Float16ToDouble(one.bits)), std::signbit(one.value)) << one.bits;
  }
  EXPECT_EQ(DoubleToFloat16(kNaN), 0x7e00);
  EXPECT_EQ(DoubleToFloat16(-kNaN), 0x7e00);
  EXPECT_TRUE(std::isnan(Float16ToDouble(0x7e00)));
  EXPECT_TRUE(std::isnan(Float16ToDouble(0xfc01)));
}

TEST(ArrayTest, Float16RoundsToNearestEvenOnce) {
  const Narrow rounded[] = {{1 + 0x1p-11, 0x3c00},            // halfway, even below
                            {1 + 3 * 0x1p-11, 0x3c02},        // halfway, even above
                            {1 + 0x1p-11 + 0x1p-40, 0x3c01},  // by way of float32 this would be halfway
                            {2048 + 1, 0x6800},
                            {65519.99, 0x7bff},
                            {65520, 0x7c00},  // halfway to what would be 65536
                            {1e300, 0x7c00},
                            {-1e5, 0xfc00},
                            {0x1p-25, 0x0000},  // half of the least subnormal
                            {0x1p-25 * 1.0001, 0x0001},
                            {1023.5 * 0x1p-24, 0x0400},  // the largest subnormal carries into the least normal
                            {1e-300, 0x0000}};
  for (const Narrow& one : rounded) EXPECT_EQ(DoubleToFloat16(one.value), one.bits) << one.value;
}

TEST(ArrayTest, BFloat16HasItsClosedValues) {
  const Narrow exact[] = {{0, 0x0000},    {-0.0, 0x8000},     {1, 0x3f80},       {-0.5, 0xbf00},
                          {kInf, 0x7f80}, {0x1p-133, 0x0001}, {0x1p-126, 0x0080}};
  for (const Narrow& one : exact) {
    EXPECT_EQ(DoubleToBFloat16(one.value), one.bits) << one.value;
    EXPECT_EQ(BFloat16ToDouble(one.bits), one.value) << one.bits;
  }
  EXPECT_EQ(DoubleToBFloat16(kNaN), 0x7fc0);
  EXPECT_EQ(DoubleToBFloat16(1 + 0x1p-8), 0x3f80);
  EXPECT_EQ(DoubleToBFloat16(1 + 3 * 0x1p-8), 0x3f82);
  EXPECT_EQ(DoubleToBFloat16(3.4e38), 0x7f80);  // beyond the largest, 3.3895e38
  EXPECT_EQ(DoubleToBFloat16(3.38e38), 0x7f7e);
}

TEST(ArrayTest, EveryNarrowNumberComesBackFromFloat64) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((half & 0x7fff) <= 0x7c00) {
      EXPECT_EQ(DoubleToFloat16(Float16ToDouble(half)), half);
    }
    if ((half & 0x7fff) <= 0x7f80) {
      EXPECT_EQ(DoubleToBFloat16(BFloat16ToDouble(half)), half);
    }
  }
}

TEST(ArrayTest, ConvertKeepsShapeAndRounds) {
  const absl::StatusOr<Array> half = Convert(Array::Of({2, 1}, std::vector<float>{0.1F, -3}), DType::kFloat16);
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(half->shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(half->bytes.size(), 4u);
  EXPECT_EQ(half->At(0), 0x1.998p-4);  // 0.1 with 11 significant bits
  EXPECT_EQ(half->At(1), -3);
}

TEST(ArrayTest, ConvertRefusesWhatIsNoFloat) {
  const absl::StatusOr<Array> mask = Array::Zeros(DType::kBool, {3});
  ASSERT_TRUE(mask.ok());
  EXPECT_EQ(Convert(*mask, DType::kFloat32).status().message(), "cannot convert bool to float32");
  EXPECT_TRUE(Convert(*mask, DType::kBool).ok());
}

TEST(ArrayTest, CountsThatDoNotFitAreRefused) {
  const std::int64_t large = std::int64_t{1} << 40;
  EXPECT_EQ(*ElementCount({large, 1, 0, 64}), 0);
  EXPECT_EQ(*ElementCount({}), 1);
  EXPECT_FALSE(ElementCount({large, large}).ok());
  EXPECT_FALSE(ElementCount({-1, 0}).ok());
  EXPECT_FALSE(ByteCount(DType::kFloat64, {large, 1 << 21}).ok());
}

TEST(ArrayTest, DTypesHaveNames) {
  EXPECT_EQ(*DTypeByName("bfloat16"), DType::kBFloat16);
  EXPECT_EQ(DTypeByName("half").status().message(),
            "dtype 'half', expected one of float32, float16, bfloat16, float64, bool, int64");
}

}  // namespace
}  // namespace attnd::client
