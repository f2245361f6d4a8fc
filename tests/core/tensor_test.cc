#include "core/tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace attnd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

template <typename Bits>
Bits Stored(DType dtype, double value) {
  std::byte bytes[8] = {};
  StoreFromDouble(dtype, value, bytes);
  Bits bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

template <typename Bits>
double Loaded(DType dtype, Bits bits) {
  std::byte bytes[sizeof(Bits) + 1];
  std::memcpy(bytes + 1, &bits, sizeof(bits));  // no alignment is promised
  return LoadAsDouble(dtype, bytes + 1);
}

// The value of a 16-bit pattern by the definition of the format.
double ByDefinition(std::uint16_t bits, int fraction_bits, int bias) {
  const double sign = bits >> 15 != 0 ? -1 : 1;
  const int exponent = (bits & 0x7FFF) >> fraction_bits;
  const double fraction = (bits & ((1 << fraction_bits) - 1)) / std::pow(2.0, fraction_bits);
  return exponent == 0 ? sign * fraction * std::pow(2.0, 1 - bias)
                       : sign * (1 + fraction) * std::pow(2.0, exponent - bias);
}

struct Format {
  DType dtype;
  int fraction_bits, bias;
  std::uint16_t infinity;
};
constexpr Format kFormats[] = {{DType::kFloat16, 10, 15, 0x7C00}, {DType::kBFloat16, 7, 127, 0x7F80}};

TEST(Tensor, NamesAndSizes) {
  EXPECT_EQ(Name(DType::kBFloat16), "bfloat16");
  EXPECT_EQ(Name(DType::kInt64), "int64");
  EXPECT_EQ(ElementBytes(DType::kFloat16), 2);
  EXPECT_EQ(ElementBytes(DType::kBool), 1);
  EXPECT_EQ(ElementBytes(DType::kFloat64), 8);
}

TEST(Tensor, ShapeTextIsShortEvenForAStrangersShape) {
  EXPECT_EQ(ShapeText({}), "[]");
  EXPECT_EQ(ShapeText({1, 8, 77, 64}), "[1,8,77,64]");
  EXPECT_EQ(ShapeText({-1, 0}), "[-1,0]");
  EXPECT_EQ(ShapeText(std::vector<std::int64_t>(1000000, 1)), "[1,1,1,1,1,1,1,1,...]");
}

TEST(Tensor, EverySixteenBitValueLoadsByDefinitionAndStoresBack) {
  for (const Format& format : kFormats) {
    for (int pattern = 0; pattern < 0x10000; ++pattern) {
      const std::uint16_t bits = static_cast<std::uint16_t>(pattern);
      const int magnitude = bits & 0x7FFF;
      const double value = Loaded(format.dtype, bits);
      if (magnitude > format.infinity) {
        ASSERT_TRUE(std::isnan(value)) << pattern;
        continue;
      }
      const double expected = magnitude == format.infinity ? (bits >> 15 != 0 ? -kInfinity : kInfinity)
                                                           : ByDefinition(bits, format.fraction_bits, format.bias);
      ASSERT_EQ(value, expected) << pattern;
      ASSERT_EQ(std::signbit(value), bits >> 15 != 0) << pattern;
      ASSERT_EQ(Stored<std::uint16_t>(format.dtype, value), bits) << pattern;
    }
  }
}

// Between every two neighbours: the middle goes to the even one, one float64 step off the middle to the nearer.
TEST(Tensor, RoundsToNearestEvenAtEveryMidpoint) {
  for (const Format& format : kFormats) {
    for (int pattern = 0; pattern < format.infinity; ++pattern) {
      const std::uint16_t low = static_cast<std::uint16_t>(pattern), high = static_cast<std::uint16_t>(pattern + 1);
      // The largest finite value's upper neighbour would be 2^(max exponent + 1), which overflows to infinity.
      const double above = ByDefinition(high, format.fraction_bits, format.bias);
      const double middle = (ByDefinition(low, format.fraction_bits, format.bias) + above) / 2;
      ASSERT_EQ(Stored<std::uint16_t>(format.dtype, middle), pattern % 2 == 0 ? low : high) << pattern;
      ASSERT_EQ(Stored<std::uint16_t>(format.dtype, std::nextafter(middle, 0)), low) << pattern;
      ASSERT_EQ(Stored<std::uint16_t>(format.dtype, std::nextafter(middle, kInfinity)), high) << pattern;
      ASSERT_EQ(Stored<std::uint16_t>(format.dtype, -std::nextafter(middle, kInfinity)), high | 0x8000) << pattern;
    }
  }
}

TEST(Tensor, RoundsOnceAndNotByWayOfFloat32) {
  const double just_over_a_tie = 1 + std::ldexp(1, -11) + std::ldexp(1, -40);  // float32 would make it the tie, then 1
  EXPECT_EQ(Stored<std::uint16_t>(DType::kFloat16, just_over_a_tie), 0x3C01);
  const double brain = 1 + std::ldexp(1, -8) + std::ldexp(1, -40);
  EXPECT_EQ(Stored<std::uint16_t>(DType::kBFloat16, brain), 0x3F81);
}

TEST(Tensor, OverflowIsInfinityAndTinyIsZeroWithItsSign) {
  EXPECT_EQ(Stored<std::uint16_t>(DType::kFloat16, 65519.99), 0x7BFF);
  EXPECT_EQ(Stored<std::uint16_t>(DType::kFloat16, 65520.0), 0x7C00);
  EXPECT_EQ(Stored<std::uint16_t>(DType::kFloat16, -1e300), 0xFC00);
  EXPECT_EQ(Stored<std::uint16_t>(DType::kFloat16, std::ldexp(1, -25)), 0);
  EXPECT_EQ(Stored<std::uint16_t>(DType::kFloat16, -1e-300), 0x8000);
  EXPECT_EQ(Stored<std::uint16_t>(DType::kFloat16, -5e-324), 0x8000);
  EXPECT_EQ(Stored<std::uint16_t>(DType::kBFloat16, 1e300), 0x7F80);
  EXPECT_EQ(Stored<float>(DType::kFloat32, 1e300), std::numeric_limits<float>::infinity());
  EXPECT_EQ(Stored<float>(DType::kFloat32, 1e-45), std::numeric_limits<float>::denorm_min());
}

TEST(Tensor, EveryNaNIsWrittenAsTheCanonicalQuietOne) {
  for (const double nan : {kNaN, -kNaN, std::bit_cast<double>(0xFFF0000000000001)}) {
    EXPECT_EQ(Stored<std::uint16_t>(DType::kFloat16, nan), 0x7E00);
    EXPECT_EQ(Stored<std::uint16_t>(DType::kBFloat16, nan), 0x7FC0);
    EXPECT_EQ(Stored<std::uint32_t>(DType::kFloat32, nan), 0x7FC00000u);
    EXPECT_EQ(Stored<std::uint64_t>(DType::kFloat64, nan), 0x7FF8000000000000u);
  }
}

TEST(Tensor, WideTypesPassThrough) {
  EXPECT_EQ(Loaded(DType::kFloat32, 0.1f), static_cast<double>(0.1f));
  EXPECT_EQ(Loaded(DType::kFloat64, 0.1), 0.1);
  EXPECT_EQ(Stored<double>(DType::kFloat64, -0.1), -0.1);
}

TEST(Tensor, ViewFindsRowsByStride) {
  const float data[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  // [B 1, N 2, H 3, d 2] seen as [B, H, N, d]; and the same with one head for all.
  const TensorView view{DType::kFloat32, reinterpret_cast<const std::byte*>(data), {1, 3, 2, 2}, {12, 2, 6, 1}};
  EXPECT_EQ(LoadAsDouble(DType::kFloat32, view.Row(0, 2, 1)), 10);
  const TensorView broadcast{DType::kFloat32, reinterpret_cast<const std::byte*>(data), {1, 3, 2, 2}, {0, 0, 2, 1}};
  EXPECT_EQ(LoadAsDouble(DType::kFloat32, broadcast.Row(0, 2, 1)), 2);
  EXPECT_EQ(view.RowsTogether(0), 2);
  EXPECT_EQ(view.RowsTogether(1), 1);
}

TEST(Tensor, ViewFindsRowsOfPages) {
  // [P 3, R 2, H 2, d 1]; B 2, T 2.
  const float data[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const std::int64_t table[] = {2, 0, 2, 1};
  TensorView view{DType::kFloat32, reinterpret_cast<const std::byte*>(data), {2, 2, 4, 1}, {4, 1, 2, 1}};
  view.pages = {2, 3, 2, reinterpret_cast<const std::byte*>(table)};
  const double first[] = {8, 10, 0, 2}, second[] = {9, 11, 5, 7};
  const float elsewhere[][4] = {{20, 21, 22, 23}, {24, 25, 26, 27}, {28, 29, 30, 31}};
  const std::byte* addresses[] = {reinterpret_cast<const std::byte*>(elsewhere[0]),
                                  reinterpret_cast<const std::byte*>(elsewhere[1]),
                                  reinterpret_cast<const std::byte*>(elsewhere[2])};
  for (const bool one_by_one : {false, true}) {
    if (one_by_one) view.pages.addresses = addresses;
    for (int n = 0; n < 4; ++n) {
      EXPECT_EQ(LoadAsDouble(DType::kFloat32, view.Row(0, 0, n)), first[n] + 20 * one_by_one);
      EXPECT_EQ(LoadAsDouble(DType::kFloat32, view.Row(1, 1, n)), second[n] + 20 * one_by_one);
      EXPECT_EQ(view.RowsTogether(n), 2 - n % 2);
    }
  }
}

}  // namespace
}  // namespace attnd
