// Rotary position embedding of rows of q and k: pair t of a row turns by position * base^(-2 t / rotary_dim), the angle
// in float64, the rotation in float32 (Su et al., RoFormer). Thread rule: pure functions on memory the caller owns.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace attnd {

// Bytes of scratch for one token.
std::int64_t RotaryScratchBytes(const Rotary& rotary);

// Where token n of sequence b stands, for queries and for keys.
std::int64_t QueryPosition(const Problem& problem, std::int64_t b, std::int64_t n);
std::int64_t KeyPosition(const Problem& problem, std::int64_t b, std::int64_t n);

// Turns one token's row of every head in place. rows: [heads, stride] float32, of which rotary_dim columns turn.
void RotateToken(const Rotary& rotary, std::int64_t position, float* rows, std::int64_t heads, std::int64_t stride,
                 std::byte* scratch);

}  // namespace attnd
