#include "core/projection.h"

#include <algorithm>

#include "core/gemm.h"
#include "core/pack.h"
#include "core/softmax.h"
#include "core/tiling.h"

namespace attnd {
namespace {

// Where a block [depth, columns] of the weights starts, and how far apart its rows are.
struct WeightBlock {
  const float* data = nullptr;
  std::int64_t stride = 0;
};

WeightBlock LoadBlock(const Linear& linear, std::int64_t depth, std::int64_t depths, std::int64_t column,
                      std::int64_t columns, float* scratch) {
  const std::int64_t row_length = linear.transposed ? linear.in : linear.out;
  const std::int64_t offset = linear.transposed ? column * row_length + depth : depth * row_length + column;
  const std::byte* const source = linear.weight + offset * ElementBytes(linear.dtype);
  if (linear.transposed) {
    PackTransposed(linear.dtype, source, row_length, columns, depths, scratch, kProjectionColumns);
    return {scratch, kProjectionColumns};
  }
  if (linear.dtype == DType::kFloat32) return {reinterpret_cast<const float*>(source), row_length};
  for (std::int64_t row = 0; row < depths; ++row) {
    WidenToFloat(linear.dtype, source + row * row_length * ElementBytes(linear.dtype), columns,
                 scratch + row * kProjectionColumns);
  }
  return {scratch, kProjectionColumns};
}

}  // namespace

std::int64_t ProjectionScratchBytes() {
  return (kProjectionRows * kProjectionDepth + kProjectionDepth * kProjectionColumns + kProjectionColumns) * 4;
}

void Project(const Linear& linear, std::int64_t column, DType x_dtype, const std::byte* x, std::int64_t x_stride,
             std::int64_t rows, float* out, std::int64_t out_stride, std::byte* scratch) {
  auto* const x_scratch = reinterpret_cast<float*>(scratch);
  float* const weight_scratch = x_scratch + kProjectionRows * kProjectionDepth;
  float* const bias = weight_scratch + kProjectionDepth * kProjectionColumns;
  const std::int64_t columns = std::min(kProjectionColumns, linear.out - column);
  for (std::int64_t depth = 0; depth < linear.in; depth += kProjectionDepth) {
    const std::int64_t depths = std::min(kProjectionDepth, linear.in - depth);
    const float* a = reinterpret_cast<const float*>(x) + depth;
    std::int64_t lda = x_stride;
    if (x_dtype != DType::kFloat32) {
      for (std::int64_t row = 0; row < rows; ++row) {
        WidenToFloat(x_dtype, x + (row * x_stride + depth) * ElementBytes(x_dtype), depths,
                     x_scratch + row * kProjectionDepth);
      }
      a = x_scratch;
      lda = kProjectionDepth;
    }
    const WeightBlock block = LoadBlock(linear, depth, depths, column, columns, weight_scratch);
    Gemm({rows, columns, depths, lda, block.stride, out_stride, depth > 0}, a, block.data, out + column);
  }
  if (linear.bias == nullptr) return;
  WidenToFloat(*linear.bias_dtype, linear.bias + column * ElementBytes(*linear.bias_dtype), columns, bias);
  for (std::int64_t row = 0; row < rows; ++row) AddBias(out + row * out_stride + column, bias, columns);
}

}  // namespace attnd
