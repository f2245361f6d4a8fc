#include "core/projection.h"

#include <algorithm>

#include "core/gemm.h"
#include "core/pack.h"
#include "core/softmax.h"
#include "core/tiling.h"

namespace attnd {
namespace {

// Rows of different callers are filled up to a multiple of this.
constexpr std::int64_t kRowsStep = 4;

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

void ProjectBlock(std::span<ProjectionRows* const> together, std::byte* scratch) {
  const ProjectionRows& at = *together.front();
  const Linear& linear = *at.linear;
  const bool alone = together.size() == 1;
  auto* const x_scratch = reinterpret_cast<float*>(scratch);
  float* const weight_scratch = x_scratch + kProjectionRows * kProjectionDepth;
  float* const bias = weight_scratch + kProjectionDepth * kProjectionColumns;
  const std::int64_t columns = std::min(kProjectionColumns, at.end_column - at.column);
  const std::int64_t depths = std::min(kProjectionDepth, linear.in - at.depth);
  // Where A and C lie, and the rows of them.
  const float* a = x_scratch;
  float* c = x_scratch + kRowsTogetherMax * kProjectionDepth;
  std::int64_t lda = kProjectionDepth, ldc = kProjectionColumns, rows = 0;
  if (alone) {
    c = at.out + at.column;
    ldc = at.out_stride;
  }
  if (alone && at.x_dtype == DType::kFloat32) {
    a = reinterpret_cast<const float*>(at.x) + at.depth;
    lda = at.x_stride;
    rows = at.rows;
  } else {
    for (const ProjectionRows* const part : together) {
      for (std::int64_t row = 0; row < part->rows; ++row, ++rows) {
        WidenToFloat(part->x_dtype, part->x + (row * part->x_stride + part->depth) * ElementBytes(part->x_dtype),
                     depths, x_scratch + rows * kProjectionDepth);
        if (!alone && part->depth > 0)
          std::copy_n(part->out + row * part->out_stride + part->column, columns, c + rows * kProjectionColumns);
      }
    }
  }
  if (!alone) {
    // A kernel is made for every number of rows: few numbers.
    for (; rows % kRowsStep != 0; ++rows) {
      std::fill_n(x_scratch + rows * kProjectionDepth, depths, 0.0F);
      std::fill_n(c + rows * kProjectionColumns, columns, 0.0F);
    }
  }
  const WeightBlock block = LoadBlock(linear, at.depth, depths, at.column, columns, weight_scratch);
  Gemm({rows, columns, depths, lda, block.stride, ldc, at.depth > 0}, a, block.data, c);
  const bool last = at.depth + depths == linear.in;
  if (last && linear.bias != nullptr)
    WidenToFloat(*linear.bias_dtype, linear.bias + at.column * ElementBytes(*linear.bias_dtype), columns, bias);
  for (ProjectionRows* const part : together) {
    for (std::int64_t row = 0; row < part->rows; ++row, c += ldc) {
      float* const out = part->out + row * part->out_stride + part->column;
      if (!alone) std::copy_n(c, columns, out);
      if (last && linear.bias != nullptr) AddBias(out, bias, columns);
    }
    part->depth = last ? 0 : part->depth + depths;
    part->column += last ? columns : 0;
  }
}

bool Project(ProjectionRows& next, std::byte* scratch, const CancelToken& cancel, const WorkerContext& context) {
  ProjectionRows* const alone[] = {&next};
  while (!next.done()) {
    if (cancel.ShouldStop() || context.ShouldPause()) return false;
    ProjectBlock(alone, scratch);
  }
  return true;
}

}  // namespace attnd
