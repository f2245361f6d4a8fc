// What a tensor is to the core: element types, and a strided read-only view that owns nothing.
// Thread rule: plain values; a view is as safe as the bytes behind it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

// Where the rows of a view lie that come as pages: row n of sequence b is row n % rows of page table[b, n / rows]. One
// page may stand in many places.
struct Pages {
  std::int64_t rows = 0;                        // R, of one page and head; 0: the view is one array
  std::int64_t count = 0;                       // P
  std::int64_t per_sequence = 0;                // T
  const std::byte* table = nullptr;             // [B, T] int64, at any address
  const std::byte* const* addresses = nullptr;  // [P]; null: page p is stride[0] * p elements after the view's data
};

// Four dimensions with strides in elements. Broadcast dimensions have stride 0. The last stride is 0 or 1.
struct TensorView {
  DType dtype = DType::kFloat32;
  const std::byte* data = nullptr;
  std::array<std::int64_t, 4> shape{};   // [B, H, N, d]
  std::array<std::int64_t, 4> stride{};  // elements; paged: from page to page, then within a page
  Pages pages{};

  bool paged() const { return pages.rows > 0; }
  const std::byte* Row(std::int64_t b, std::int64_t h, std::int64_t n) const {
    if (paged()) return PagedRow(b, h, n);
    return data + (b * stride[0] + h * stride[1] + n * stride[2]) * ElementBytes(dtype);
  }
  // How many rows from n on lie stride[2] apart: to the end of n's page, or all the rest.
  std::int64_t RowsTogether(std::int64_t n) const { return paged() ? pages.rows - n % pages.rows : shape[2] - n; }

 private:
  const std::byte* PagedRow(std::int64_t b, std::int64_t h, std::int64_t n) const;
};

// Element `index` of int64 elements at any address.
inline std::int64_t LoadInt64(const std::byte* elements, std::int64_t index) {
  std::int64_t value = 0;
  std::memcpy(&value, elements + index * ElementBytes(DType::kInt64), sizeof(value));
  return value;
}

// One element as float64. Float types only.
double LoadAsDouble(DType dtype, const std::byte* element);

// Rounds to nearest even into dtype. Float types only. NaN becomes the canonical quiet NaN.
void StoreFromDouble(DType dtype, double value, std::byte* element);

}  // namespace attnd
