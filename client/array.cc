#include "client/array.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attnd::client {

static_assert(std::endian::native == std::endian::little, "tensor bytes are little-endian");

namespace {

struct NamedType {
  DType dtype;
  absl::string_view name;
  std::int64_t bytes;
};
constexpr NamedType kTypes[] = {{DType::kFloat32, "float32", 4},   {DType::kFloat16, "float16", 2},
                                {DType::kBFloat16, "bfloat16", 2}, {DType::kFloat64, "float64", 8},
                                {DType::kBool, "bool", 1},         {DType::kInt64, "int64", 8}};

// A binary format narrower than float64, with an implicit leading bit, subnormals and infinities.
struct NarrowFormat {
  int exponent_bits;
  int mantissa_bits;
};
constexpr NarrowFormat kFloat16Format{5, 10};
constexpr NarrowFormat kBFloat16Format{8, 7};

double Decode(NarrowFormat format, std::uint16_t bits) {
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent_max = (1 << format.exponent_bits) - 1;
  const int exponent = (bits >> format.mantissa_bits) & exponent_max;
  const int exponent_least = 2 - (1 << (format.exponent_bits - 1));
  double value = 0;
  if (exponent == exponent_max) {
    value = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, exponent_least - format.mantissa_bits);
  } else {
    value = std::ldexp(mantissa | (1 << format.mantissa_bits), exponent - 1 + exponent_least - format.mantissa_bits);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

std::uint16_t Encode(NarrowFormat format, double value) {
  const int infinity = ((1 << format.exponent_bits) - 1) << format.mantissa_bits;
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | (1 << (format.mantissa_bits - 1)));
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return static_cast<std::uint16_t>(sign);
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
  const int exponent_least = 2 - (1 << (format.exponent_bits - 1));
  const int exponent = std::max(std::ilogb(magnitude), exponent_least);
  if (exponent > -exponent_least + 1) return static_cast<std::uint16_t>(sign | infinity);
  // The significand as an integer with its leading bit: adding it to the exponent field carries where rounding does,
  // and gives subnormals their exponent field of 0.
  const int significand = static_cast<int>(std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent)));
  const int bits = ((exponent - exponent_least) << format.mantissa_bits) + significand;
  return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
}

template <typename T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
template <typename T>
void Store(T value, char* to) {
  std::memcpy(to, &value, sizeof(value));
}

template <typename T>
Array FromValues(DType dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  Array array{dtype, std::move(shape), std::string(values.size() * sizeof(T), '\0')};
  if (!values.empty()) std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

}  // namespace

std::int64_t ElementBytes(DType dtype) {
  for (const NamedType& type : kTypes) {
    if (type.dtype == dtype) return type.bytes;
  }
  return 1;
}

absl::string_view Name(DType dtype) {
  for (const NamedType& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  return "unknown";
}

absl::StatusOr<DType> DTypeByName(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const NamedType& type : kTypes) {
    if (type.name == name) return type.dtype;
    names.push_back(type.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("dtype '", name, "', expected one of ", absl::StrJoin(names, ", ")));
}

bool IsFloat(DType dtype) { return dtype != DType::kBool && dtype != DType::kInt64; }

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

absl::StatusOr<std::int64_t> ElementCount(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return absl::InvalidArgumentError(absl::StrCat("shape ", ShapeText(shape), " has a negative size"));
    empty = empty || size == 0;
  }
  if (empty) return 0;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", ShapeText(shape), " has more elements than fit int64"));
    }
  }
  return count;
}

absl::StatusOr<std::int64_t> ByteCount(DType dtype, const std::vector<std::int64_t>& shape) {
  const absl::StatusOr<std::int64_t> elements = ElementCount(shape);
  if (!elements.ok()) return elements.status();
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(*elements, ElementBytes(dtype), &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("shape ", ShapeText(shape), " has more bytes than fit int64"));
  }
  return bytes;
}

double Float16ToDouble(std::uint16_t bits) { return Decode(kFloat16Format, bits); }
double BFloat16ToDouble(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
std::uint16_t DoubleToFloat16(double value) { return Encode(kFloat16Format, value); }
std::uint16_t DoubleToBFloat16(double value) { return Encode(kBFloat16Format, value); }

absl::StatusOr<Array> Array::Zeros(DType dtype, std::vector<std::int64_t> shape) {
  const absl::StatusOr<std::int64_t> bytes = ByteCount(dtype, shape);
  if (!bytes.ok()) return bytes.status();
  return Array{dtype, std::move(shape), std::string(static_cast<std::size_t>(*bytes), '\0')};
}

Array Array::Of(std::vector<std::int64_t> shape, const std::vector<float>& values) {
  return FromValues(DType::kFloat32, std::move(shape), values);
}
Array Array::Of(std::vector<std::int64_t> shape, const std::vector<double>& values) {
  return FromValues(DType::kFloat64, std::move(shape), values);
}

double Array::At(std::int64_t index) const {
  const char* from = bytes.data() + index * ElementBytes(dtype);
  switch (dtype) {
    case DType::kFloat32: return Load<float>(from);
    case DType::kFloat16: return Float16ToDouble(Load<std::uint16_t>(from));
    case DType::kBFloat16: return BFloat16ToDouble(Load<std::uint16_t>(from));
    case DType::kFloat64: return Load<double>(from);
    case DType::kBool: return static_cast<unsigned char>(*from);
    case DType::kInt64: return static_cast<double>(Load<std::int64_t>(from));
  }
  return 0;
}

void Array::Set(std::int64_t index, double value) {
  char* to = bytes.data() + index * ElementBytes(dtype);
  switch (dtype) {
    case DType::kFloat32: return Store(static_cast<float>(value), to);
    case DType::kFloat16: return Store(DoubleToFloat16(value), to);
    case DType::kBFloat16: return Store(DoubleToBFloat16(value), to);
    case DType::kFloat64: return Store(value, to);
    case DType::kBool: return Store(static_cast<char>(value != 0), to);
    case DType::kInt64: return Store(static_cast<std::int64_t>(value), to);
  }
}

absl::StatusOr<Array> Convert(Array array, DType dtype) {
  if (array.dtype == dtype) return array;
  if (!IsFloat(array.dtype) || !IsFloat(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot convert ", Name(array.dtype), " to ", Name(dtype)));
  }
  absl::StatusOr<Array> converted = Array::Zeros(dtype, array.shape);
  if (!converted.ok()) return converted;
  const std::int64_t count = array.elements();
  for (std::int64_t i = 0; i < count; ++i) converted->Set(i, array.At(i));
  return converted;
}

}  // namespace attnd::client
