// Rows of x times a weight matrix, plus bias, in float32: x W + b, a block of columns at a time.
//
// The sum over the inner dimension runs in a fixed order, so a row's bytes do not depend on how many rows share the
// product, nor on where it was interrupted. Thread rule: pure function on memory the caller owns.
#pragma once

#include <cstdint>

#include "core/buffer.h"
#include "core/executor.h"
#include "core/problem.h"

namespace attnd {

// Bytes of scratch for one call.
std::int64_t ProjectionScratchBytes();

// x: `rows` rows of linear->in elements, x_stride elements apart; out: [rows, out_stride] float32, of which the columns
// [column, end_column) are written. rows <= kProjectionRows; column is a multiple of kProjectionColumns.
struct ProjectionRows {
  const Linear* linear = nullptr;
  DType x_dtype = DType::kFloat32;
  const std::byte* x = nullptr;
  std::int64_t x_stride = 0, rows = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  std::int64_t column = 0, end_column = 0;
  std::int64_t depth = 0;  // of the block of columns at `column`: inputs summed
};

// The product from where `next` stands, which moves on. False when it gave way or `cancel` stopped it, between two
// blocks of the matrix: call again to go on. Nothing of it is in the scratch then.
bool Project(ProjectionRows& next, std::byte* scratch, const CancelToken& cancel, const WorkerContext& context);

}  // namespace attnd
