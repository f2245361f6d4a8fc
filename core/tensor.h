// What a tensor is to the core: element types, and a strided read-only view that owns nothing.
// Thread rule: plain values; a view is as safe as the bytes behind it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attnd {

enum class DType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kFloat64, kBool, kInt64 };

// Bytes of one element.
constexpr std::int64_t ElementBytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kBool: return 1;
  }
  return 0;
}

// "float32", "bfloat16", ...
std::string_view Name(DType dtype);

// "[1,8,77,64]", as errors print it.
std::string ShapeText(const std::vector<std::int64_t>& shape);

// Order of dimensions of q, k, v and the output on the outside; inside, views are always [B, H, N, d].
enum class Layout : std::uint8_t { kBHND, kBNHD };

// The tensors an answer can hold. The numbers are those of the wire's OutputKind.
enum class OutputKind : std::uint8_t {
  kOutput = 1,
  kWeights = 2,
  kLse = 3,
  kScoresDot = 4,
  kScoresScaled = 5,
  kScoresCapped = 6,
  kScoresBiased = 7,
  kProjectedQ = 8,
  kProjectedK = 9,
  kProjectedV = 10,
};
constexpr int kOutputKindCount = 11;  // one more than the largest

constexpr bool IsProjected(OutputKind kind) { return kind >= OutputKind::kProjectedQ; }
// Weights and scores: a column a key.
constexpr bool IsOfKeys(OutputKind kind) {
  return kind != OutputKind::kOutput && kind != OutputKind::kLse && !IsProjected(kind);
}

// Four dimensions with strides in elements. Broadcast dimensions have stride 0. The last stride is 0 or 1.
struct TensorView {
  DType dtype = DType::kFloat32;
  const std::byte* data = nullptr;
  std::array<std::int64_t, 4> shape{};   // [B, H, N, d]
  std::array<std::int64_t, 4> stride{};  // elements

  const std::byte* Row(std::int64_t b, std::int64_t h, std::int64_t n) const {
    return data + (b * stride[0] + h * stride[1] + n * stride[2]) * ElementBytes(dtype);
  }
};

// One element as float64. Float types only.
double LoadAsDouble(DType dtype, const std::byte* element);

// Rounds to nearest even into dtype. Float types only. NaN becomes the canonical quiet NaN.
void StoreFromDouble(DType dtype, double value, std::byte* element);

}  // namespace attnd
