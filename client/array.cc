#include "client/array.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

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

// IEEE 754's binary16.
struct Float16 {
  std::uint16_t bits = 0;
  static constexpr int kMantissaBits = 10, kBias = 15, kInfinity = 0x7c00;
  static constexpr double kLeast = 0x1p-24;  // the least subnormal number
};
// The upper half of a float.
struct BFloat16 {
  std::uint16_t bits = 0;
  static constexpr int kMantissaBits = 7, kBias = 127, kInfinity = 0x7f80;
  static constexpr double kLeast = 0x1p-133;
};

// What lies between a wide format, float or double as an unsigned integer, and a narrow one.
template <typename Wide, typename Narrow>
struct Between {
  using Bits = std::conditional_t<sizeof(Wide) == 8, std::uint64_t, std::uint32_t>;
  static constexpr int kWidth = 8 * sizeof(Wide);
  static constexpr int kMantissaBits = std::numeric_limits<Wide>::digits - 1;
  static constexpr int kShift = kMantissaBits - Narrow::kMantissaBits;
  static constexpr Bits kSign = Bits{1} << (kWidth - 1);
  static constexpr Bits kInfinity = std::bit_cast<Bits>(std::numeric_limits<Wide>::infinity());
  static constexpr int kBias = std::numeric_limits<Wide>::max_exponent - 1;
  static constexpr Bits kRebias = static_cast<Bits>(kBias - Narrow::kBias) << kMantissaBits;
};

// Both ways without branches, so that a loop over them becomes vector instructions.
template <typename Wide, typename Narrow>
Narrow Encode(Wide value) {
  using B = Between<Wide, Narrow>;
  using Bits = typename B::Bits;
  constexpr Bits kSmallestNormal = B::kRebias + (Bits{1} << B::kMantissaBits);
  constexpr Bits kTooLarge = B::kRebias + (static_cast<Bits>(2 * Narrow::kBias + 1) << B::kMantissaBits);
  constexpr Bits kNaN = Narrow::kInfinity | 1 << (Narrow::kMantissaBits - 1);
  // Next to this number the wide format's last place is the narrow one's least number, so that adding it rounds.
  constexpr auto kRounder = static_cast<Wide>(Narrow::kLeast * (std::uint64_t{1} << B::kMantissaBits));
  const auto bits = std::bit_cast<Bits>(value);
  const Bits magnitude = bits & ~B::kSign;
  // Half a last place less one, and one more where the number below is odd. A carry goes on into the exponent, and from
  // the largest number to infinity.
  Bits narrow = (magnitude - B::kRebias + (Bits{1} << (B::kShift - 1)) - 1 + (magnitude >> B::kShift & 1)) >> B::kShift;
  if constexpr (B::kRebias != 0) {
    const Bits subnormal =
        std::bit_cast<Bits>(std::bit_cast<Wide>(magnitude) + kRounder) - std::bit_cast<Bits>(kRounder);
    narrow = magnitude < kSmallestNormal ? subnormal : narrow;
  }
  narrow = magnitude < kTooLarge ? narrow : Bits{Narrow::kInfinity};
  narrow |= (bits & B::kSign) >> (B::kWidth - 16);
  return {static_cast<std::uint16_t>(magnitude <= B::kInfinity ? narrow : kNaN)};
}

template <typename Wide, typename Narrow>
Wide Decode(Narrow value) {
  using B = Between<Wide, Narrow>;
  using Bits = typename B::Bits;
  const Bits magnitude = value.bits & Bits{0x7fff};
  Bits wide = (magnitude << B::kShift) + B::kRebias;
  if constexpr (B::kRebias != 0) {
    const auto subnormal = static_cast<Wide>(static_cast<std::int32_t>(magnitude)) * static_cast<Wide>(Narrow::kLeast);
    wide = magnitude >> Narrow::kMantissaBits == 0 ? std::bit_cast<Bits>(subnormal) : wide;
  }
  wide = magnitude < Bits{Narrow::kInfinity} ? wide : B::kInfinity;
  wide |= (value.bits & Bits{0x8000}) << (B::kWidth - 16);
  constexpr auto kNaN = std::bit_cast<Bits>(std::numeric_limits<Wide>::quiet_NaN());
  return std::bit_cast<Wide>(magnitude <= Bits{Narrow::kInfinity} ? wide : kNaN);
}

template <typename Wide, typename T>
Wide Widen(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<Wide>(value);
  } else {
    return Decode<Wide>(value);
  }
}
template <typename T, typename Wide>
T RoundTo(Wide value) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else {
    return Encode<Wide, T>(value);
  }
}

// Calls `call` with a number of the type. `dtype` is a float type.
template <typename Call>
void WithType(DType dtype, const Call& call) {
  switch (dtype) {
    case DType::kFloat16: return call(Float16{});
    case DType::kBFloat16: return call(BFloat16{});
    case DType::kFloat64: return call(double{});
    default: return call(float{});
  }
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

double Float16ToDouble(std::uint16_t bits) { return Decode<double>(Float16{bits}); }
double BFloat16ToDouble(std::uint16_t bits) { return Decode<double>(BFloat16{bits}); }
std::uint16_t DoubleToFloat16(double value) { return Encode<double, Float16>(value).bits; }
std::uint16_t DoubleToBFloat16(double value) { return Encode<double, BFloat16>(value).bits; }

void ConvertElements(DType from_dtype, absl::string_view from, DType to_dtype, char* to) {
  if (from_dtype == to_dtype) {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
    return;
  }
  WithType(from_dtype, [&](auto source) {
    WithType(to_dtype, [&](auto target) {
      using Source = decltype(source);
      using Target = decltype(target);
      // Wide enough to hold either, so that there is one rounding.
      using Wide = std::conditional_t<sizeof(Source) == 8 || sizeof(Target) == 8, double, float>;
      const std::size_t count = from.size() / sizeof(Source);
      const char* const elements = from.data();
      for (std::size_t i = 0; i < count; ++i) {
        Store(RoundTo<Target>(Widen<Wide>(Load<Source>(elements + i * sizeof(Source)))), to + i * sizeof(Target));
      }
    });
  });
}

std::string WidenToInt64(absl::string_view narrow) {
  std::string wide(2 * narrow.size(), '\0');
  for (std::size_t i = 0; i < narrow.size() / 4; ++i) {
    std::int32_t value;
    std::memcpy(&value, narrow.data() + 4 * i, 4);
    const std::int64_t widened = value;
    std::memcpy(wide.data() + 8 * i, &widened, 8);
  }
  return wide;
}

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
  Array converted{dtype, array.shape, {}};
  converted.bytes.reserve(static_cast<std::size_t>(array.elements() * ElementBytes(dtype)));
  ArrayWriter(array.dtype, converted, 0, array.elements(), 0).Take(array.bytes);
  return converted;
}

void ArrayWriter::Take(absl::string_view part) {
  const auto element = static_cast<std::size_t>(ElementBytes(from_dtype_));
  while (!part.empty()) {
    if (cut_bytes_ > 0 || part.size() < element) {
      const std::size_t rest = std::min(element - cut_bytes_, part.size());
      std::memcpy(cut_ + cut_bytes_, part.data(), rest);
      part.remove_prefix(rest);
      cut_bytes_ += rest;
      if (cut_bytes_ < element) return;
      cut_bytes_ = 0;
      Put({cut_, element});
      continue;
    }
    const std::size_t whole = std::min(part.size() / element, static_cast<std::size_t>(left_)) * element;
    Put(part.substr(0, whole));
    part.remove_prefix(whole);
  }
}

void ArrayWriter::Put(absl::string_view elements) {
  // What is grown by is zeroed first: little enough to stay in the nearest cache.
  constexpr std::size_t kStepBytes = 16 << 10;
  const std::int64_t from_element = ElementBytes(from_dtype_), to_element = ElementBytes(to_.dtype);
  while (!elements.empty()) {
    const absl::string_view step = elements.substr(0, kStepBytes);
    const std::int64_t count = static_cast<std::int64_t>(step.size()) / from_element;
    const auto begin = static_cast<std::size_t>(next_ * to_element);
    if (from_dtype_ == to_.dtype && begin == to_.bytes.size()) {
      to_.bytes.append(step.data(), step.size());
    } else {
      const auto end = static_cast<std::size_t>((next_ + count) * to_element);
      if (end > to_.bytes.size()) to_.bytes.resize(end);
      ConvertElements(from_dtype_, step, to_.dtype, to_.bytes.data() + begin);
    }
    next_ += count;
    left_ -= count;
    elements.remove_prefix(step.size());
  }
  if (left_ == 0) {
    left_ = columns_;
    next_ += stride_ - columns_;
  }
}

}  // namespace attnd::client
