// The vector arithmetic between the two products: exclusion, online softmax, division (Highway inside).
//
// Logits of a tile: scores [rows, columns], `stride` floats from row to row. An excluded entry is set to -inf by
// selection and never reached by adding; exp of it is exactly 0. exp lets NaN through and is exactly 0 below
// ln(FLT_MIN). Every row is computed from its own entries alone, in an order that depends only on the columns. Thread
// rule: pure functions on memory the caller owns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attnd {

enum class MaskSummary { kAllFalse, kAllTrue, kMixed };

// Of `columns` mask bytes (0 or 1), at least one.
MaskSummary SummarizeMask(const std::uint8_t* mask, std::int64_t columns);

// scores <- -inf where mask is 0. mask: [columns] bytes.
void ExcludeMasked(float* scores, const std::uint8_t* mask, std::int64_t columns);

// scores <- scores * scale, one row.
void ScaleRow(float* scores, float scale, std::int64_t columns);

// scores <- cap * tanh(scores / cap), one row.
void SoftCapRow(float* scores, float cap, std::int64_t columns);

// scores <- scores - slope * |position - column|, one row: ALiBi, with column 0 of the tile at distance `position`.
void AddDistanceBias(float* scores, float slope, float position, std::int64_t columns);

// scores <- scores + bias, one row.
void AddBias(float* scores, const float* bias, std::int64_t columns);

// scores <- -inf where bias is exactly -inf.
void ExcludeByBias(float* scores, const float* bias, std::int64_t columns);

// Columns of a SoftmaxTile come in multiples of this, filled up with -inf, so that a row's sum does not depend on how
// far its neighbours reach.
constexpr std::int64_t kSoftmaxColumnsStep = 32;

struct SoftmaxTile {
  float* scores = nullptr;                         // [rows, columns] logits in, e^(logit - m) out
  std::int64_t stride = 0, rows = 0, columns = 0;  // columns: a multiple of kSoftmaxColumnsStep
  float exp2_factor =
      0;  // turns a difference of scores into a power of two: log2(e), times scale where that is folded in
};

// One step of the online softmax: for every row takes the tile's maximum into m and its sum into l, and leaves in alpha
// what the row's accumulator must be multiplied with. m starts at -inf, l at 0. m, l, alpha: [rows].
void SoftmaxStep(const SoftmaxTile& tile, float* m, float* l, float* alpha);

// Rows of accumulator [rows, columns] times alpha[row].
void RescaleRows(float* accumulator, std::int64_t stride, std::int64_t rows, std::int64_t columns, const float* alpha);

// values <- values / divisor, one row. True when every value is finite.
bool DivideRow(float* values, float divisor, std::int64_t columns);

// weights <- e^(score - m) / l from the row's own final (m, l). In place.
void WeightsRow(float* scores, float m, float l, float exp2_factor, std::int64_t columns);

// AVX2 at most for everything that Highway dispatches, here and elsewhere. Before the first call.
void LimitSimdToAvx2();

// The instruction set that these functions were dispatched to.
const char* SimdTargetName();

}  // namespace attnd
