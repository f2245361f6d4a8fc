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

// Takes the next block [depth, columns] of the weights into the sums, and the bias after the last.
void ProjectBlock(const ProjectionRows& at, std::int64_t columns, std::byte* scratch) {
  const Linear& linear = *at.linear;
  auto* const x_scratch = reinterpret_cast<float*>(scratch);
  float* const weight_scratch = x_scratch + kProjectionRows * kProjectionDepth;
  float* const bias = weight_scratch + kProjectionDepth * kProjectionColumns;
  const std::int64_t depths = std::min(kProjectionDepth, linear.in - at.depth);
  const float* a = reinterpret_cast<const float*>(at.x) + at.depth;
  std::int64_t lda = at.x_stride;
  if (at.x_dtype != DType::kFloat32) {
    for (std::int64_t row = 0; row < at.rows; ++row) {
      WidenToFloat(at.x_dtype, at.x + (row * at.x_stride + at.depth) * ElementBytes(at.x_dtype), depths,
                   x_scratch + row * kProjectionDepth);
    }
    a = x_scratch;
    lda = kProjectionDepth;
  }
  const WeightBlock block = LoadBlock(linear, at.depth, depths, at.column, columns, weight_scratch);
  Gemm({at.rows, columns, depths, lda, block.stride, at.out_stride, at.depth > 0}, a, block.data, at.out + at.column);
  if (at.depth + depths < linear.in || linear.bias == nullptr) return;
  WidenToFloat(*linear.bias_dtype, linear.bias + at.column * ElementBytes(*linear.bias_dtype), columns, bias);
  for (std::int64_t row = 0; row < at.rows; ++row) AddBias(at.out + row * at.out_stride + at.column, bias, columns);
}

}  // namespace

std::int64_t ProjectionScratchBytes() {
  return (kProjectionRows * kProjectionDepth + kProjectionDepth * kProjectionColumns + kProjectionColumns) * 4;
}

bool Project(ProjectionRows& next, std::byte* scratch, const CancelToken& cancel, const WorkerContext& context) {
  while (next.column < next.end_column) {
    const std::int64_t columns = std::min(kProjectionColumns, next.end_column - next.column);
    for (; next.depth < next.linear->in; next.depth += kProjectionDepth) {
      if (cancel.ShouldStop() || context.ShouldPause()) return false;
      ProjectBlock(next, columns, scratch);
    }
    next.column += columns;
    next.depth = 0;
  }
  return true;
}

}  // namespace attnd
