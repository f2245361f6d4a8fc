// Rows of x times a weight matrix, plus bias, in float32: x W + b, a block of columns at a time.
//
// The sum over the inner dimension runs in a fixed order, so a row's bytes do not depend on how many rows share the
// product. Thread rule: pure function on memory the caller owns.
#pragma once

#include <cstdint>

#include "core/buffer.h"
#include "core/problem.h"

namespace attnd {

// Bytes of scratch for one call.
std::int64_t ProjectionScratchBytes();

// x: `rows` rows of `linear.in` elements, x_stride elements apart; out: [rows, out_stride] float32, of which the
// columns [column, column + kProjectionColumns) that linear.out has are written. rows <= kProjectionRows.
void Project(const Linear& linear, std::int64_t column, DType x_dtype, const std::byte* x, std::int64_t x_stride,
             std::int64_t rows, float* out, std::int64_t out_stride, std::byte* scratch);

}  // namespace attnd
