// Products for a few query rows, as in decoding: K and V are used once, so they are read where they lie, in whatever
// float type they came, and not packed (Highway inside). The rows are those of all heads that share a kv head, so that
// K and V are read once for the group. A row's bytes depend on its own operands alone, never on how many rows share the
// call. Thread rule: pure functions on memory the caller owns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor.h"

namespace attnd {

// Keys or values: `columns` rows of `width` elements of a float type, `stride` elements apart.
struct InPlaceRows {
  DType dtype = DType::kFloat32;
  const std::byte* data = nullptr;
  std::int64_t stride = 0, columns = 0, width = 0;
};

// scores[row, j] = q[row] . key j. q: [rows, width] float32; scores: [rows, scores_stride].
void DotInPlace(const InPlaceRows& keys, const float* q, std::int64_t rows, float* scores, std::int64_t scores_stride);

// accumulator[row] += sum over j, in order, of p[row, j] * value j. accumulator: [rows, width]; p: [rows, p_stride].
void AddWeightedInPlace(const InPlaceRows& values, const float* p, std::int64_t p_stride, std::int64_t rows,
                        float* accumulator);

}  // namespace attnd
