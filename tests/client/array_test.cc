#include "client/array.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
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

// The standard's own formula: numbers whose exponent field is 0 have no leading 1.
double ByFormula(int bits, int mantissa_bits, int bias) {
  const int exponent = bits >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  return exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                       : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

std::uint16_t Bits(const Array& array, std::int64_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, array.bytes.data() + 2 * index, sizeof(bits));
  return bits;
}

struct NarrowType {
  DType dtype;
  int mantissa_bits, bias, infinity;
};
constexpr NarrowType kNarrowTypes[] = {{DType::kFloat16, 10, 15, 0x7c00}, {DType::kBFloat16, 7, 127, 0x7f80}};

TEST(ArrayTest, EveryNarrowNumberWidensToTheStandardsValue) {
  for (const NarrowType& type : kNarrowTypes) {
    Array narrow{type.dtype, {2, type.infinity + 2}, ""};
    for (const int sign : {0, 0x8000}) {
      for (int bits = 0; bits <= type.infinity + 1; ++bits) {
        const auto half = static_cast<std::uint16_t>(sign | bits);
        narrow.bytes.append(reinterpret_cast<const char*>(&half), sizeof(half));
      }
    }
    for (const DType wide_dtype : {DType::kFloat32, DType::kFloat64}) {
      const absl::StatusOr<Array> wide = Convert(narrow, wide_dtype);
      ASSERT_TRUE(wide.ok());
      std::int64_t i = 0;
      for (const double sign : {1.0, -1.0}) {
        for (int bits = 0; bits < type.infinity; ++bits, ++i) {
          ASSERT_EQ(wide->At(i), sign * ByFormula(bits, type.mantissa_bits, type.bias)) << Name(type.dtype) << bits;
          ASSERT_EQ(std::signbit(wide->At(i)), sign < 0);
        }
        EXPECT_EQ(wide->At(i++), sign * kInf);
        EXPECT_TRUE(std::isnan(wide->At(i++)));
      }
    }
  }
}

// Between any two neighbours: the middle goes to the even one, and what is next to the middle to the nearer one. Beyond
// the largest number the neighbour is the next power of two, which is written as infinity.
TEST(ArrayTest, EveryMiddleRoundsToEvenFromFloat32AndFloat64) {
  for (const NarrowType& type : kNarrowTypes) {
    std::vector<float> numbers;
    std::vector<double> doubles;
    std::vector<int> right;
    for (int bits = 0; bits < type.infinity; ++bits) {
      const double low = ByFormula(bits, type.mantissa_bits, type.bias);
      const double middle = (low + ByFormula(bits + 1, type.mantissa_bits, type.bias)) / 2;
      const auto number = static_cast<float>(middle);  // exact: it has one significant bit more
      for (const float sign : {1.0F, -1.0F}) {
        const int sign_bit = sign < 0 ? 0x8000 : 0;
        numbers.insert(numbers.end(), {sign * std::nextafter(number, 0.0F), sign * number,
                                       sign * std::nextafter(number, std::numeric_limits<float>::infinity())});
        doubles.insert(doubles.end(),
                       {sign * std::nextafter(middle, 0.0), sign * middle, sign * std::nextafter(middle, kInf)});
        right.insert(right.end(), {sign_bit | bits, sign_bit | (bits + bits % 2), sign_bit | (bits + 1)});
      }
    }
    const auto count = static_cast<std::int64_t>(right.size());
    for (const Array& wide : {Array::Of({count}, numbers), Array::Of({count}, doubles)}) {
      const absl::StatusOr<Array> narrow = Convert(wide, type.dtype);
      ASSERT_TRUE(narrow.ok());
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(Bits(*narrow, i), right[static_cast<std::size_t>(i)]) << Name(type.dtype) << " of " << wide.At(i);
      }
    }
  }
}

TEST(ArrayTest, ConvertKeepsInfinityAndMakesNaNQuiet) {
  const Array wide = Array::Of({5}, std::vector<float>{INFINITY, -INFINITY, NAN, -NAN, 3.4e38F});
  const int right[2][5] = {{0x7c00, 0xfc00, 0x7e00, 0x7e00, 0x7c00}, {0x7f80, 0xff80, 0x7fc0, 0x7fc0, 0x7f80}};
  for (int type = 0; type < 2; ++type) {
    const absl::StatusOr<Array> narrow = Convert(wide, kNarrowTypes[type].dtype);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(Bits(*narrow, i), right[type][i]);
  }
  // The largest float16 and one of its subnormal numbers, by way of float32, as bfloat16.
  const absl::StatusOr<Array> half = Convert(Array::Of({2}, std::vector<float>{65504, 0x1p-24F}), DType::kFloat16);
  const absl::StatusOr<Array> brain = Convert(*half, DType::kBFloat16);
  EXPECT_EQ(brain->At(0), 65536);
  EXPECT_EQ(brain->At(1), 0x1p-24);
}

TEST(ArrayTest, ConvertElementsNeedsNoAlignmentAndMovesEqualTypesAsTheyAre) {
  const Array wide = Array::Of({3}, std::vector<float>{1, -2, 0.5F});
  const std::string shifted = "?" + wide.bytes;
  std::string to(1 + 6, '!');
  ConvertElements(DType::kFloat32, absl::string_view(shifted).substr(1), DType::kBFloat16, to.data() + 1);
  EXPECT_EQ(to, std::string("!\x80\x3f\x00\xc0\x00\x3f", 7));
  const std::string signalling("\x01\x7c\x01\xfc", 4);  // float16 NaN with payloads
  std::string same(4, '!');
  ConvertElements(DType::kFloat16, signalling, DType::kFloat16, same.data());
  EXPECT_EQ(same, signalling);
}

// Columns 1 and 2 of two rows of four, and what lies between and before them.
TEST(ArrayTest, AWriterFillsRunsWhereverItsBytesAreCut) {
  const Array came = Array::Of({4}, std::vector<float>{1, 2, 3, 4});
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kFloat64}) {
    const std::vector<double> right = {0, 1, 2, 0, 0, 3, 4};
    for (std::size_t first_cut = 0; first_cut <= 16; ++first_cut) {
      for (std::size_t second_cut = first_cut; second_cut <= 16; ++second_cut) {
        Array array{dtype, {2, 4}, {}};
        ArrayWriter writer(DType::kFloat32, array, 1, 2, 4);
        const absl::string_view bytes = came.bytes;
        writer.Take(bytes.substr(0, first_cut));
        writer.Take(bytes.substr(first_cut, second_cut - first_cut));
        writer.Take(bytes.substr(second_cut));
        ASSERT_EQ(array.elements(), 7) << first_cut << " " << second_cut;
        for (std::size_t i = 0; i < right.size(); ++i) EXPECT_EQ(array.At(static_cast<std::int64_t>(i)), right[i]);
      }
    }
  }
}

TEST(ArrayTest, LaterRowsMayComeFirst) {
  const Array came = Array::Of({2}, std::vector<float>{5, 6});
  Array array{DType::kBFloat16, {3, 2}, {}};
  for (const std::int64_t row : {1, 0, 2}) ArrayWriter(DType::kFloat32, array, 2 * row, 2, 2).Take(came.bytes);
  EXPECT_EQ(array.bytes, Convert(Array::Of({6}, std::vector<float>{5, 6, 5, 6, 5, 6}), DType::kBFloat16)->bytes);
}

// More than is converted at a time, by parts that cut elements.
TEST(ArrayTest, AWriterTakesPartsOfAnySize) {
  Array came = *Array::Zeros(DType::kFloat64, {30000});
  for (std::int64_t i = 0; i < came.elements(); ++i) came.Set(i, static_cast<double>(i) / 4);
  for (const std::size_t size : {std::size_t{7}, std::size_t{16384}, std::size_t{50001}, came.bytes.size()}) {
    Array array{DType::kFloat32, {30000}, {}};
    ArrayWriter writer(DType::kFloat64, array, 0, 30000, 0);
    for (std::size_t at = 0; at < came.bytes.size(); at += size) {
      writer.Take(absl::string_view(came.bytes).substr(at, size));
    }
    ASSERT_EQ(array.elements(), 30000);
    for (std::int64_t i = 0; i < 30000; ++i) ASSERT_EQ(array.At(i), static_cast<double>(i) / 4) << size;
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
