// What a problem costs, from shapes and lengths alone: arithmetic without kernels, the same on every machine.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/problem.h"

namespace attnd {

// Counts are exact; bytes are what the server allocates.
struct Cost {
  std::int64_t scores_per_head = 0;               // Nq * Nk
  std::int64_t score_multiply_adds_per_head = 0;  // Nq * Nk * d_k
  std::int64_t multiply_adds_per_head = 0;        // Nq * Nk * (d_k + d_v)
  std::int64_t multiply_adds = 0;                 // all sequences and heads, with projections
  std::int64_t flops = 0;                         // 2 * multiply_adds
  std::int64_t flops_after_exclusion = 0;         // rows beyond q_len and keys outside VisibleKeys left out
  std::int64_t naive_score_bytes_per_head = 0;    // 4 * Nq * Nk
  std::int64_t naive_score_bytes = 0;             // over B * Hq
  std::int64_t input_bytes = 0;
  std::int64_t packed_k_bytes = 0;
  std::int64_t packed_v_bytes = 0;
  std::int64_t projected_bytes = 0;           // projected q, k, v and, with w_o, the attention output before it
  std::int64_t row_state_bytes = 0;           // (m, l) per row, kept when weights are wanted (tiled mode)
  std::int64_t scratch_bytes_per_thread = 0;  // does not depend on Nq or Nk
  std::int64_t output_bytes = 0;              // of kOutput
  std::int64_t reply_bytes = 0;               // of everything wanted
  std::int64_t tiles = 0;                     // QueryTileRows x kKeyTileColumns scores each, over all heads
};

// Overflow of a count is INVALID_ARGUMENT; `layers` multiplies totals and the naive bytes.
absl::StatusOr<Cost> EstimateCost(const Problem& problem, std::int64_t layers = 1);

}  // namespace attnd
