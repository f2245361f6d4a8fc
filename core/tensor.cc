#include "core/tensor.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

// A 16-bit IEEE-like format: sign, exponent, fraction.
struct Narrow {
  int fraction_bits;
  int bias;
  std::uint16_t infinity;   // exponent all ones, fraction zero
  std::uint16_t quiet_nan;  // the canonical one
};
constexpr Narrow kHalf{10, 15, 0x7C00, 0x7E00};
constexpr Narrow kBrain{7, 127, 0x7F80, 0x7FC0};

double Widen(const Narrow& format, std::uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int magnitude = bits & 0x7FFF;
  if (magnitude > format.infinity) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == format.infinity) return sign * std::numeric_limits<double>::infinity();
  const int one = 1 << format.fraction_bits;
  const int exponent = magnitude >> format.fraction_bits;
  const int fraction = magnitude & (one - 1);
  const int significand = exponent == 0 ? fraction : fraction | one;
  const int power = (exponent == 0 ? 1 : exponent) - format.bias - format.fraction_bits;
  return sign * significand * std::bit_cast<double>(static_cast<std::uint64_t>(power + 1023) << 52);  // 2^power
}

// Rounds once, straight from float64: by way of float32 a tie could be rounded twice. Integer arithmetic, so that
// flushing of subnormal numbers on worker threads does not reach it.
std::uint16_t Round(const Narrow& format, double value) {
  constexpr int kDoubleFraction = 52;
  constexpr int kDoubleBias = 1023;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>(bits >> 63 << 15);
  const int biased = static_cast<int>(bits >> kDoubleFraction & 0x7FF);
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << kDoubleFraction) - 1);
  if (biased == 0x7FF) return fraction != 0 ? format.quiet_nan : static_cast<std::uint16_t>(sign | format.infinity);
  if (biased == 0) return sign;  // float64 subnormals are far below half of the smallest value of either format

  const std::uint64_t significand = fraction | std::uint64_t{1} << kDoubleFraction;
  int exponent = biased - kDoubleBias + format.bias;  // of the target, biased; below 1 the result is subnormal
  int shift = kDoubleFraction - format.fraction_bits;
  if (exponent < 1) {
    shift += 1 - exponent;
    exponent = 1;
    if (shift > kDoubleFraction + 1) return sign;  // less than half of the smallest subnormal
  }
  std::uint64_t kept = significand >> shift;
  const std::uint64_t dropped = significand & ((std::uint64_t{1} << shift) - 1);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  if (dropped > half || (dropped == half && (kept & 1) != 0)) ++kept;
  // `kept` holds the implicit one unless the result is subnormal, so a carry moves into the exponent by itself.
  const std::uint64_t magnitude = (static_cast<std::uint64_t>(exponent - 1) << format.fraction_bits) + kept;
  return static_cast<std::uint16_t>(sign | (magnitude >= format.infinity ? format.infinity : magnitude));
}

template <typename T>
T Load(const std::byte* element) {
  T value;
  std::memcpy(&value, element, sizeof(T));
  return value;
}

}  // namespace

const std::byte* TensorView::PagedRow(std::int64_t b, std::int64_t h, std::int64_t n) const {
  const std::int64_t page = LoadInt64(pages.table, b * pages.per_sequence + n / pages.rows);
  const std::int64_t row = (h * stride[1] + n % pages.rows * stride[2]) * ElementBytes(dtype);
  return pages.addresses == nullptr ? data + page * stride[0] * ElementBytes(dtype) + row : pages.addresses[page] + row;
}

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "float32";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat64: return "float64";
    case DType::kBool: return "bool";
    case DType::kInt64: return "int64";
  }
  return "unknown";
}

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kDimensionsMax = 8;  // a stranger's shape may have millions
  std::string text = "[";
  for (std::size_t n = 0; n < shape.size() && n < kDimensionsMax; ++n) {
    absl::StrAppend(&text, n == 0 ? "" : ",", shape[n]);
  }
  absl::StrAppend(&text, shape.size() > kDimensionsMax ? ",...]" : "]");
  return text;
}

double LoadAsDouble(DType dtype, const std::byte* element) {
  switch (dtype) {
    case DType::kFloat32: return Load<float>(element);
    case DType::kFloat64: return Load<double>(element);
    case DType::kFloat16: return Widen(kHalf, Load<std::uint16_t>(element));
    case DType::kBFloat16: return std::bit_cast<float>(static_cast<std::uint32_t>(Load<std::uint16_t>(element)) << 16);
    case DType::kBool:
    case DType::kInt64: break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void StoreFromDouble(DType dtype, double value, std::byte* element) {
  const auto store = [element](auto bits) { std::memcpy(element, &bits, sizeof(bits)); };
  const bool nan = std::isnan(value);
  switch (dtype) {
    case DType::kFloat32:
      return store(nan ? std::uint32_t{0x7FC00000} : std::bit_cast<std::uint32_t>(static_cast<float>(value)));
    case DType::kFloat64: return store(nan ? std::uint64_t{0x7FF8} << 48 : std::bit_cast<std::uint64_t>(value));
    case DType::kFloat16: return store(Round(kHalf, value));
    case DType::kBFloat16: return store(Round(kBrain, value));
    case DType::kBool:
    case DType::kInt64: break;
  }
}

}  // namespace attnd
