// An n-dimensional array by value: element type, shape and bytes, as files and messages hold it.
// Thread rule: a plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "absl/strings/string_view.h"

#include "absl/status/statusor.h"

namespace attnd::client {

// Element types. The numbers are those of the wire's DataType.
enum class DType : std::uint8_t { kFloat32 = 1, kFloat16 = 2, kBFloat16 = 3, kFloat64 = 4, kBool = 5, kInt64 = 6 };

// Bytes of one element.
std::int64_t ElementBytes(DType dtype);
// "float32", "bfloat16", ...
absl::string_view Name(DType dtype);
// The type of that name. INVALID_ARGUMENT lists the names there are.
absl::StatusOr<DType> DTypeByName(absl::string_view name);
bool IsFloat(DType dtype);

// "[1,8,77,64]", as errors print it.
std::string ShapeText(const std::vector<std::int64_t>& shape);
// Product of the sizes. INVALID_ARGUMENT when one is negative or the product does not fit int64. The client's only
// product of dimensions.
absl::StatusOr<std::int64_t> ElementCount(const std::vector<std::int64_t>& shape);
// ElementCount times the element's size, checked likewise.
absl::StatusOr<std::int64_t> ByteCount(DType dtype, const std::vector<std::int64_t>& shape);

// One float16 or bfloat16 number as float64, and back, rounded once to nearest even. NaN becomes the canonical quiet
// NaN.
double Float16ToDouble(std::uint16_t bits);
double BFloat16ToDouble(std::uint16_t bits);
std::uint16_t DoubleToFloat16(double value);
std::uint16_t DoubleToBFloat16(double value);

// The elements in `from` to `to`: the same bytes when the types are equal, else from one float type to another, each
// rounded once to nearest even. `to` has room for all of them and lies apart; neither need be aligned.
void ConvertElements(DType from_dtype, absl::string_view from, DType to_dtype, char* to);

// Elements of int32 as elements of int64.
std::string WidenToInt64(absl::string_view narrow);

struct Array {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::string bytes;  // product(shape) elements, row-major, little-endian

  // All zero. INVALID_ARGUMENT for a shape that is no shape.
  static absl::StatusOr<Array> Zeros(DType dtype, std::vector<std::int64_t> shape);
  // `values` holds product(shape) elements.
  static Array Of(std::vector<std::int64_t> shape, const std::vector<float>& values);
  static Array Of(std::vector<std::int64_t> shape, const std::vector<double>& values);

  std::int64_t elements() const { return static_cast<std::int64_t>(bytes.size()) / ElementBytes(dtype); }
  // Element by its number in row-major order, whatever the type.
  double At(std::int64_t index) const;
  // Rounds to the array's type.
  void Set(std::int64_t index, double value);
};

// Puts elements that come as bytes in parts, cut anywhere, into an array of another or the same float type, each
// rounded once. Runs of `columns` elements, each as far from the one before as `stride`, are filled one after another;
// the array's bytes grow as far as the last element that came, zero between.
class ArrayWriter {
 public:
  // From element `first` of `to` on.
  ArrayWriter(DType from_dtype, Array& to, std::int64_t first, std::int64_t columns, std::int64_t stride)
      : from_dtype_(from_dtype), to_(to), next_(first), columns_(columns), stride_(stride), left_(columns) {}

  void Take(absl::string_view part);

 private:
  // Whole elements of one run.
  void Put(absl::string_view elements);

  const DType from_dtype_;
  Array& to_;
  std::int64_t next_;  // element of `to` that comes next
  const std::int64_t columns_, stride_;
  std::int64_t left_;  // elements of the run that have not come
  char cut_[8] = {};   // the beginning of an element whose rest has not come
  std::size_t cut_bytes_ = 0;
};

// The same elements in another float type, each rounded once. INVALID_ARGUMENT between other types.
absl::StatusOr<Array> Convert(Array array, DType dtype);

}  // namespace attnd::client
