#include "core/tile_plan.h"

#include <algorithm>
#include <limits>
#include <numbers>

#include "core/checked.h"
#include "core/pack.h"
#include "core/rotary.h"
#include "core/tiling.h"

namespace attnd {

TilePlan::TilePlan(const Problem& validated) : problem(validated), q(validated.q), k(validated.k), v(validated.v) {
  tile_rows = TileRows(problem);
  packs_ahead = PacksAhead(problem);
  pairs = TakesPairs(problem);
  packed_depth = PackedDepth(problem);
  ranges = RangesMax(problem);
  scratch = ScratchOf(problem);
  if (ranges > 0) parts = AlignedBuffer<float>(PartFloats(problem).value());
  key_tiles = CeilDiv(problem.kv_rows, kKeyTileColumns);
  packed_stride = PackedStride(problem.kv_rows);
  scale = static_cast<float>(problem.scale);
  // Outside of this range log2(e) * scale or its reciprocal would leave the normal numbers.
  folded = !problem.bias.has_value() && !problem.softcap.has_value() && problem.alibi_slopes.empty() &&
           problem.sinks.empty() && scale > 1e-30F && scale < 1e30F;
  constexpr double kCapMin = std::numeric_limits<float>::min(), kCapMax = std::numeric_limits<float>::max();
  softcap = static_cast<float>(std::clamp(problem.softcap.value_or(kCapMax), kCapMin, kCapMax));
  unit = folded ? scale : 1.0F;
  exp2_factor = std::numbers::log2e_v<float> * unit;

  const std::int64_t sequences_kv = problem.batch * problem.kv_heads;
  const auto rows_view = [](const AlignedBuffer<float>& buffer, std::int64_t b, std::int64_t n, std::int64_t heads,
                            std::int64_t d) {
    return TensorView{DType::kFloat32,
                      reinterpret_cast<const std::byte*>(buffer.data()),
                      {b, heads, n, d},
                      {n * heads * d, d, heads * d, 1}};
  };
  if (problem.projection.has_value()) {
    const std::int64_t b = problem.batch, n = problem.q_rows;
    projected_q = AlignedBuffer<float>(b * n * problem.q_heads * problem.d_k);
    projected_k = AlignedBuffer<float>(b * n * problem.kv_heads * problem.d_k);
    projected_v = AlignedBuffer<float>(b * n * problem.kv_heads * problem.d_v);
    q = rows_view(projected_q, b, n, problem.q_heads, problem.d_k);
    k = rows_view(projected_k, b, n, problem.kv_heads, problem.d_k);
    v = rows_view(projected_v, b, n, problem.kv_heads, problem.d_v);
  }
  if (problem.rotary.has_value() && !problem.projection.has_value()) {
    turned_q = AlignedBuffer<float>(problem.batch * problem.q_rows * problem.q_heads * problem.d_k);
    turned_k = AlignedBuffer<float>(problem.batch * problem.kv_rows * problem.kv_heads * problem.d_k);
    q = rows_view(turned_q, problem.batch, problem.q_rows, problem.q_heads, problem.d_k);
    k = rows_view(turned_k, problem.batch, problem.kv_rows, problem.kv_heads, problem.d_k);
  }
  wide_v = v;
  if (packs_ahead) {
    packed_k = AlignedBuffer<float>(sequences_kv * key_tiles * packed_stride * packed_depth);
    if (PacksValuesAhead(problem)) {
      const std::int64_t head = problem.kv_rows * problem.d_v;
      packed_v = AlignedBuffer<float>(sequences_kv * head);
      wide_v = {DType::kFloat32,
                reinterpret_cast<const std::byte*>(packed_v.data()),
                v.shape,
                {problem.kv_heads * head, head, problem.d_v, 1}};
    }
  }
  if (problem.d_out > 0)
    heads_out = AlignedBuffer<float>(problem.batch * problem.q_rows * problem.q_heads * problem.d_v);
  if (problem.Wants(OutputKind::kWeights)) {
    row_m = AlignedBuffer<float>(problem.batch * problem.q_heads * problem.q_rows);
    row_l = AlignedBuffer<float>(problem.batch * problem.q_heads * problem.q_rows);
  }
}

bool InPlace(const Problem& problem, std::int64_t b) {
  const auto sequence = static_cast<std::size_t>(b);
  return ReadsInPlace(problem.q_len[sequence], problem.kv_len[sequence]);
}

std::int64_t Ranges(const Problem& problem, std::int64_t b) {
  const auto sequence = static_cast<std::size_t>(b);
  const std::int64_t q_len = problem.q_len[sequence];
  const std::int64_t ranges = CeilDiv(problem.kv_len[sequence], RangeKeys(problem.d_k, problem.d_v));
  return q_len > 0 && q_len <= kInPlaceQueriesMax && ranges > 1 ? ranges : 0;
}

std::int64_t RangesMax(const Problem& problem) {
  std::int64_t ranges = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) ranges = std::max(ranges, Ranges(problem, b));
  return ranges;
}

namespace {
std::int64_t PartRows(const Problem& problem) { return std::min(problem.q_rows, kInPlaceQueriesMax); }
}  // namespace

std::optional<std::int64_t> PartFloats(const Problem& problem) {
  return CheckedProduct({problem.batch, RangesMax(problem), problem.q_heads, PartRows(problem), 2 + problem.d_v});
}

float* TilePlan::Part(std::int64_t b, std::int64_t range, std::int64_t h, std::int64_t i) const {
  return parts.data() + (((b * ranges + range) * problem.q_heads + h) * PartRows(problem) + i) * (2 + problem.d_v);
}

std::int64_t TileRows(const Problem& problem) {
  const std::int64_t rows =
      QueryTileRows(problem.d_k, problem.d_v, problem.causal || problem.window_left || problem.window_right);
  return std::clamp<std::int64_t>(problem.q_rows * (problem.q_heads / problem.kv_heads), 1, rows);
}

bool TakesPairs(const Problem& problem, bool machine_has_pairs) {
  const bool as_they_came = !problem.projection.has_value() && !problem.rotary.has_value();
  return machine_has_pairs && as_they_came && problem.q.dtype == DType::kBFloat16 &&
         problem.k.dtype == DType::kBFloat16 && problem.d_k % 2 == 0;
}

std::int64_t PackedDepth(const Problem& problem) { return TakesPairs(problem) ? problem.d_k / 2 : problem.d_k; }

bool PacksAhead(const Problem& problem) {
  std::int64_t in_place = 0;
  while (in_place < problem.batch && InPlace(problem, in_place)) ++in_place;
  if (in_place == problem.batch) return false;
  const bool emits = std::any_of(problem.extras.begin(), problem.extras.end(), IsOfKeys);
  return emits || problem.q_heads > problem.kv_heads || problem.q_rows > TileRows(problem);
}

ScratchFloats ScratchOf(const Problem& problem) {
  const std::int64_t rows = TileRows(problem), keys = std::min(kKeyTileColumns, problem.kv_rows);
  const std::int64_t packed = PacksAhead(problem) ? 0 : PackedDepth(problem) * PackedStride(problem.kv_rows);
  const std::int64_t joined = RangesMax(problem) == 0 ? 0 : rows * (2 + problem.d_v);
  const std::int64_t q = rows * problem.d_k, scores = rows * kTileStride, sums = rows * problem.d_v;
  return {q, scores, sums, sums, joined, keys * problem.d_v, packed, keys, rows, rows, rows, 2 * rows};
}

bool PacksValuesAhead(const Problem& problem) {
  return PacksAhead(problem) && (problem.v.dtype != DType::kFloat32 || problem.v.paged());
}

const float* TilePlan::KeyTile(std::int64_t b, std::int64_t kv_head, std::int64_t tile) const {
  return packed_k.data() + ((b * problem.kv_heads + kv_head) * key_tiles + tile) * packed_stride * packed_depth;
}

namespace {

void Turn(const Problem& problem, const TensorView& came, const TensorView& turned, std::int64_t b, std::int64_t n,
          std::int64_t position, std::byte* scratch) {
  const std::int64_t heads = turned.shape[1];
  auto* const rows = const_cast<float*>(reinterpret_cast<const float*>(turned.Row(b, 0, n)));
  if (!problem.projection.has_value()) {
    for (std::int64_t h = 0; h < heads; ++h)
      WidenToFloat(came.dtype, came.Row(b, h, n), problem.d_k, rows + h * problem.d_k);
  }
  RotateToken(*problem.rotary, position, rows, heads, problem.d_k, scratch);
}

}  // namespace

void TurnQuery(TilePlan& plan, std::int64_t b, std::int64_t n, std::byte* scratch) {
  Turn(plan.problem, plan.problem.q, plan.q, b, n, QueryPosition(plan.problem, b, n), scratch);
}

void TurnKey(TilePlan& plan, std::int64_t b, std::int64_t n, std::byte* scratch) {
  if (n >= plan.problem.kv_len[static_cast<std::size_t>(b)]) return;  // never read
  Turn(plan.problem, plan.problem.k, plan.k, b, n, KeyPosition(plan.problem, b, n), scratch);
}

void PackKeys(const TilePlan& plan, std::int64_t b, std::int64_t kv_head, std::int64_t tile, Strip depth,
              float* packed) {
  const std::int64_t key = tile * kKeyTileColumns;
  const std::int64_t keys = std::min(kKeyTileColumns, plan.problem.kv_len[static_cast<std::size_t>(b)] - key);
  // A pair of bfloat16 moves as one float32.
  const DType moved = plan.pairs ? DType::kFloat32 : plan.k.dtype;
  const std::int64_t stride = plan.pairs ? plan.k.stride[2] / 2 : plan.k.stride[2];
  for (std::int64_t j = 0, run = 0; j < keys; j += run) {
    run = std::min(plan.k.RowsTogether(key + j), keys - j);
    PackTransposed(moved, plan.k.Row(b, kv_head, key + j) + depth.first * ElementBytes(moved), stride, run,
                   depth.end - depth.first, packed + depth.first * plan.packed_stride + j, plan.packed_stride);
  }
}

std::int64_t PackedStrips(const Problem& problem) {
  return CeilDiv(std::max(PackedDepth(problem), PacksValuesAhead(problem) ? problem.d_v : 0), kPackedTogether);
}

namespace {

Strip StripOf(std::int64_t strip, std::int64_t width) {
  return {std::min(width, strip * kPackedTogether), std::min(width, (strip + 1) * kPackedTogether)};
}

}  // namespace

void PackAhead(TilePlan& plan, std::int64_t b, std::int64_t kv_head, std::int64_t tile, std::int64_t strip) {
  if (InPlace(plan.problem, b)) return;
  const Strip depth = StripOf(strip, plan.packed_depth);
  if (depth.first < depth.end) {
    PackKeys(plan, b, kv_head, tile, depth, const_cast<float*>(plan.KeyTile(b, kv_head, tile)));
  }
  if (plan.packed_v.data() == nullptr) return;
  const Strip width = StripOf(strip, plan.problem.d_v);
  const std::int64_t key = tile * kKeyTileColumns;
  const std::int64_t end = std::min(key + kKeyTileColumns, plan.problem.kv_len[static_cast<std::size_t>(b)]);
  for (std::int64_t j = key; j < end; ++j) {
    auto* const row = reinterpret_cast<float*>(const_cast<std::byte*>(plan.wide_v.Row(b, kv_head, j)));
    WidenToFloat(plan.v.dtype, plan.v.Row(b, kv_head, j) + width.first * ElementBytes(plan.v.dtype),
                 width.end - width.first, row + width.first);
  }
}

}  // namespace attnd
