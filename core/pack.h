// Bringing tensors into the form the kernels read, and results into the form callers asked for (Highway inside).
// Thread rule: pure functions on memory the caller owns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor.h"

namespace attnd {

// count elements of a float type -> float32. Exact.
void WidenToFloat(DType dtype, const std::byte* source, std::int64_t count, float* target);

// count float32 -> a float type of at most 32 bits, to nearest even; any NaN becomes the canonical quiet NaN.
// True when every stored element is finite.
bool NarrowFromFloat(DType dtype, const float* source, std::int64_t count, std::byte* target);

// rows x columns of a float type, `stride` elements from row to row -> target [columns, target_stride], transposed,
// float32.
void PackTransposed(DType dtype, const std::byte* source, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                    float* target, std::int64_t target_stride);

}  // namespace attnd
