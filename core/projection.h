// Rows of x times a weight matrix, plus bias, in float32: x W + b, a block of columns at a time.
//
// The sum over the inner dimension runs in a fixed order, so a row's bytes do not depend on how many rows share the
// product, whose they are, nor on where it was interrupted. Thread rule: pure functions on memory the caller owns.
#pragma once

#include <cstdint>
#include <span>

#include "core/buffer.h"
#include "core/executor.h"
#include "core/problem.h"
#include "core/tiling.h"

namespace attnd {

// Bytes of scratch for one call.
std::int64_t ProjectionScratchBytes();

// Most rows of different callers that share one product.
constexpr std::int64_t kRowsTogetherMax = kProjectionRows / 2;

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

  bool done() const { return column >= end_column; }
};

// Takes the next block [kProjectionDepth, kProjectionColumns] of the weights into the sums of all of `together`, and
// the bias after the last of a column; they move on. They stand at the same place of the same weights; where there is
// more than one, they are kRowsTogetherMax rows at most. Throws std::bad_alloc, then with nothing changed.
void ProjectBlock(std::span<ProjectionRows* const> together, std::byte* scratch);

// The product from where `next` stands, which moves on. False when it gave way or `cancel` stopped it, between two
// blocks of the matrix: call again to go on. Nothing of it is in the scratch then.
bool Project(ProjectionRows& next, std::byte* scratch, const CancelToken& cancel, const WorkerContext& context);

}  // namespace attnd
