// The second pass of a query tile: weights and scores, block by block, from the rows' own (m, l).
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/pack.h"
#include "core/softmax.h"
#include "core/tile.h"
#include "core/tiling.h"

namespace attnd {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

bool QueryTile::HasSpecialWeights(std::int64_t row) const {
  if (row >= live_rows_) return true;
  const std::int64_t index = plan_.RowIndex(b_, h_, first_row_ + row);
  const float m = plan_.row_m.data()[index], l = plan_.row_l.data()[index];
  return !std::isfinite(m) || !std::isfinite(l) || l == 0;
}

void QueryTile::EmitSpecialWeights(std::int64_t row, std::int64_t key, std::int64_t columns, float* target) const {
  const bool empty = row >= live_rows_ || plan_.row_l.data()[plan_.RowIndex(b_, h_, first_row_ + row)] == 0;
  for (std::int64_t j = 0; j < columns; ++j) target[j] = !empty && Allowed(row, key + j) ? kNan : 0.0F;
}

void QueryTile::EmitRow(OutputKind kind, std::int64_t row, std::int64_t key, std::int64_t columns,
                        std::int64_t computed, float* target) {
  const bool weights = kind == OutputKind::kWeights;
  if (weights && HasSpecialWeights(row)) return EmitSpecialWeights(row, key, columns, target);
  std::copy_n(scores_ + row * kTileStride, computed, target);
  if (computed > 0 && !weights) StepsTo(kind, target, row, key, computed);
  if (computed > 0 && weights) {
    StepsTo(plan_.folded ? OutputKind::kScoresDot : OutputKind::kScoresBiased, target, row, key, computed);
    const std::int64_t index = plan_.RowIndex(b_, h_, first_row_ + row);
    WeightsRow(target, plan_.row_m.data()[index], plan_.row_l.data()[index], plan_.exp2_factor, computed);
  }
  std::fill(target + computed, target + columns, weights ? 0.0F : kMinusInfinity);
  NarrowFromFloat(DType::kFloat32, target, columns, reinterpret_cast<std::byte*>(target));  // canonical NaN
}

bool QueryTile::Emit(std::span<const OutputKind> kinds, OpenBlocks& blocks, const CancelToken& cancel,
                     const WorkerContext& context) {
  while (blocks.count() < kinds.size()) {
    blocks.Open({kinds[blocks.count()], DType::kFloat32, b_, h_, first_row_, rows_, problem_.kv_rows});
  }
  const Problem::KeyRange keys = KeysOf(AllRows());
  for (std::int64_t& key = cursor_.key; key < problem_.kv_rows; key += kKeyTileColumns) {
    if (cancel.ShouldStop()) return true;
    if (context.ShouldPause()) return false;
    const std::int64_t columns = std::min(kKeyTileColumns, problem_.kv_rows - key);
    const std::int64_t visible = key + columns > keys.first ? std::clamp<std::int64_t>(keys.end - key, 0, columns) : 0;
    if (visible > 0) {
      Products(AllRows(), key, visible);
      LookAtMask(AllRows(), key, visible);
    }
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      const RowSpan& span = blocks.span(kind);
      for (std::int64_t row = 0; row < rows_; ++row) {
        auto* const target = reinterpret_cast<float*>(span.data + row * span.stride_bytes) + key;
        EmitRow(kinds[kind], row, key, columns, row < live_rows_ ? visible : 0, target);
      }
    }
  }
  blocks.Close();
  return true;
}

}  // namespace attnd
