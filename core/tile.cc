#include "core/tile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/checked.h"
#include "core/gemm.h"
#include "core/in_place.h"
#include "core/pack.h"
#include "core/softmax.h"
#include "core/tiling.h"

namespace attnd {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Hands out consecutive pieces of a scratch block. Each starts on a cache line and away from the others' cache sets.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  float* Take(std::int64_t floats) {
    // Without a base it only measures: no arithmetic on a null pointer.
    auto* const piece = base_ == nullptr ? nullptr : reinterpret_cast<float*>(base_ + offset_);
    offset_ += (floats * 4 + 63) / 64 * 64 + 192;
    return piece;
  }
  std::int64_t offset() const { return offset_; }

 private:
  std::byte* base_;
  std::int64_t offset_ = 0;
};

// Where a trimmed key tile may begin: sums join their partial sums as if it began at a whole tile.
std::int64_t AlignedKey(std::int64_t key) { return key / kSoftmaxColumnsStep * kSoftmaxColumnsStep; }

std::int64_t PaddedColumns(std::int64_t columns) { return CeilDiv(columns, kSoftmaxColumnsStep) * kSoftmaxColumnsStep; }

// Takes one more logit into a row's m and l; alpha as SoftmaxStep leaves it. Returns e^(logit - new m).
float MeetLogit(float logit, float exp2_factor, float* m, float* l, float* alpha) {
  float tile[kSoftmaxColumnsStep];
  std::fill(std::begin(tile), std::end(tile), kMinusInfinity);
  tile[0] = logit;
  SoftmaxStep({tile, kSoftmaxColumnsStep, 1, kSoftmaxColumnsStep, exp2_factor}, m, l, alpha);
  return tile[0];
}

bool AnyNonFinite(const float* values, std::int64_t count) {
  return std::any_of(values, values + count, [](float value) { return !std::isfinite(value); });
}

}  // namespace

std::int64_t QueryTile::ScratchBytes(const ScratchFloats& pieces) {
  Carver carver(nullptr);
  for (const std::int64_t floats : pieces) carver.Take(floats);
  return carver.offset();
}

QueryTile::QueryTile(TilePlan& plan, Scratch& scratch, std::int64_t b, std::int64_t h, std::int64_t heads,
                     std::int64_t first_row, std::int64_t rows)
    : plan_(plan),
      problem_(plan.problem),
      b_(b),
      h_(h),
      heads_(heads),
      kv_head_(h / (plan.problem.q_heads / plan.problem.kv_heads)),
      first_row_(first_row),
      rows_(rows),
      in_place_(InPlace(plan.problem, b)),
      live_rows_(std::clamp<std::int64_t>(plan.problem.q_len[static_cast<std::size_t>(b)] - first_row, 0, rows)) {
  Carver carver(scratch.Reserve(ScratchBytes(plan.scratch)));
  float* gathered_q = nullptr;
  std::size_t piece = 0;
  for (float** const place :
       {&gathered_q, &scores_, &accumulator_, &tile_sums_, &joined_, &values_, &packed_, &bias_, &m_, &l_, &alpha_}) {
    *place = carver.Take(plan.scratch[piece++]);
  }
  lse_ = reinterpret_cast<double*>(carver.Take(plan.scratch[piece]));
  if (live_rows_ == 0) return;

  if (plan.pairs && !in_place_) {
    q_pairs_ = plan.q.Row(b, h, first_row);
    q_stride_ = plan.q.stride[2];
  } else if (plan.q.dtype == DType::kFloat32 && !in_place_) {
    q_ = reinterpret_cast<const float*>(plan.q.Row(b, h, first_row));
    q_stride_ = plan.q.stride[2];
  } else {
    for (std::int64_t row = 0; row < AllRows().count; ++row) {
      WidenToFloat(plan.q.dtype, plan.q.Row(b, HeadOf(row), IndexOf(row)), problem_.d_k,
                   gathered_q + row * problem_.d_k);
    }
    q_ = gathered_q;
    q_stride_ = problem_.d_k;
  }
  common_ = {0, problem_.kv_rows};
  any_ = {problem_.kv_rows, 0};
  for (std::int64_t row = 0; row < live_rows_; ++row) {
    const Problem::KeyRange keys = problem_.VisibleKeys(b_, first_row_ + row);
    common_ = {std::max(common_.first, keys.first), std::min(common_.end, keys.end)};
    if (keys.first < keys.end) any_ = {std::min(any_.first, keys.first), std::max(any_.end, keys.end)};
  }
}

Problem::KeyRange QueryTile::KeysOf(Rows rows) const {
  return rows.count == 1 ? problem_.VisibleKeys(b_, IndexOf(rows.first)) : any_;
}

void QueryTile::Products(Rows rows, std::int64_t key, std::int64_t columns) {
  float* const scores = scores_ + rows.first * kTileStride;
  if (in_place_) {
    const TensorView& view = plan_.k;
    for (std::int64_t j = 0, run = 0; j < columns; j += run) {
      run = std::min(view.RowsTogether(key + j), columns - j);
      const InPlaceRows keys{view.dtype, view.Row(b_, kv_head_, key + j), view.stride[2], run, problem_.d_k};
      DotInPlace(keys, q_ + rows.first * q_stride_, rows.count, scores + j, kTileStride);
    }
    return;
  }
  const std::int64_t tile = key / kKeyTileColumns;
  if (!plan_.packs_ahead) PackKeys(plan_, b_, kv_head_, tile, {0, plan_.packed_depth}, packed_);
  const float* const packed = (plan_.packs_ahead ? plan_.KeyTile(b_, kv_head_, tile) : packed_) + key % kKeyTileColumns;
  const GemmShape shape{rows.count,          columns,     problem_.d_k, q_stride_,
                        plan_.packed_stride, kTileStride, false,        plan_.pairs};
  if (plan_.pairs) {
    GemmPairs(shape, q_pairs_ + rows.first * q_stride_ * ElementBytes(DType::kBFloat16), packed, scores);
  } else {
    Gemm(shape, q_ + rows.first * q_stride_, packed, scores);
  }
}

void QueryTile::AddValues(Rows rows, std::int64_t key, std::int64_t columns, bool add, bool sanitized) {
  const TensorView& view = in_place_ ? plan_.v : plan_.wide_v;
  // The products take values as one float32 array.
  const bool gathered = sanitized || (!in_place_ && (view.dtype != DType::kFloat32 || view.paged()));
  for (std::int64_t j = 0; j < columns && gathered && !sanitized; ++j) {
    WidenToFloat(view.dtype, view.Row(b_, kv_head_, key + j), problem_.d_v, values_ + j * problem_.d_v);
  }
  // From key + j on, as many as lie together.
  const auto values_from = [&](std::int64_t j) -> InPlaceRows {
    if (!gathered) {
      const std::int64_t run = std::min(view.RowsTogether(key + j), columns - j);
      return {view.dtype, view.Row(b_, kv_head_, key + j), view.stride[2], run, problem_.d_v};
    }
    const auto* const values = reinterpret_cast<const std::byte*>(values_ + j * problem_.d_v);
    return {DType::kFloat32, values, problem_.d_v, columns - j, problem_.d_v};
  };
  const float* const scores = scores_ + rows.first * kTileStride;
  float* const accumulator = accumulator_ + rows.first * problem_.d_v;
  if (in_place_) {
    // A tile is summed by itself and then added, as brgemm does: one sum over all keys would round once a key.
    const std::int64_t count = rows.count * problem_.d_v;
    float* const sums = add ? tile_sums_ : accumulator;
    std::fill_n(sums, count, 0.0F);
    for (std::int64_t j = 0; j < columns;) {
      const InPlaceRows values = values_from(j);
      AddWeightedInPlace(values, scores + j, kTileStride, rows.count, sums);
      j += values.columns;
    }
    for (std::int64_t n = 0; add && n < count; ++n) accumulator[n] += sums[n];
    return;
  }
  const InPlaceRows values = values_from(0);
  Gemm({rows.count, problem_.d_v, columns, kTileStride, values.stride, problem_.d_v, add}, scores,
       reinterpret_cast<const float*>(values.data), accumulator);
}

const float* QueryTile::BiasRow(std::int64_t row, std::int64_t key, std::int64_t columns) {
  const TensorView& bias = *problem_.bias;
  const std::byte* const source =
      bias.Row(b_, HeadOf(row), IndexOf(row)) + key * bias.stride[3] * ElementBytes(bias.dtype);
  if (bias.stride[3] == 0) {
    WidenToFloat(bias.dtype, source, 1, bias_);
    std::fill(bias_ + 1, bias_ + columns, bias_[0]);
    return bias_;
  }
  if (bias.dtype == DType::kFloat32) return reinterpret_cast<const float*>(source);
  WidenToFloat(bias.dtype, source, columns, bias_);
  return bias_;
}

MaskSummary QueryTile::MaskOf(std::int64_t row, std::int64_t key, std::int64_t columns) const {
  const TensorView& mask = *problem_.mask;
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(mask.Row(b_, HeadOf(row), IndexOf(row)));
  return mask.stride[3] == 0 ? SummarizeMask(bytes, 1) : SummarizeMask(bytes + key, columns);
}

void QueryTile::LookAtMask(Rows rows, std::int64_t key, std::int64_t columns) {
  mask_ = MaskSummary::kAllTrue;
  if (!problem_.mask.has_value() || rows.count == 0) return;
  mask_ = MaskOf(rows.first, key, columns);
  const bool same_for_all = problem_.mask->stride[2] == 0 && (heads_ == 1 || problem_.mask->stride[1] == 0);
  for (std::int64_t row = rows.first + 1; row < rows.first + rows.count && !same_for_all; ++row) {
    if (mask_ == MaskSummary::kMixed) return;
    if (MaskOf(row, key, columns) != mask_) mask_ = MaskSummary::kMixed;
  }
}

void QueryTile::Exclude(float* scores, std::int64_t row, std::int64_t key, std::int64_t columns) {
  if (problem_.bias.has_value()) ExcludeByBias(scores, BiasRow(row, key, columns), columns);
  if (mask_ == MaskSummary::kAllFalse) {
    std::fill_n(scores, columns, kMinusInfinity);
    return;
  }
  if (mask_ == MaskSummary::kMixed) {
    const TensorView& mask = *problem_.mask;
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(mask.Row(b_, HeadOf(row), IndexOf(row)));
    if (mask.stride[3] != 0) {
      ExcludeMasked(scores, bytes + key, columns);
    } else if (*bytes == 0) {
      std::fill_n(scores, columns, kMinusInfinity);
    }
  }
  const Problem::KeyRange keys = problem_.VisibleKeys(b_, IndexOf(row));
  const std::int64_t first = std::clamp<std::int64_t>(keys.first - key, 0, columns);
  const std::int64_t end = std::clamp<std::int64_t>(keys.end - key, first, columns);
  std::fill(scores, scores + first, kMinusInfinity);
  std::fill(scores + end, scores + columns, kMinusInfinity);
}

void QueryTile::StepsTo(OutputKind step, float* scores, std::int64_t row, std::int64_t key, std::int64_t columns) {
  if (step >= OutputKind::kScoresScaled) ScaleRow(scores, plan_.scale, columns);
  if (step >= OutputKind::kScoresCapped && problem_.softcap.has_value()) {
    SoftCapRow(scores, plan_.softcap, columns);
  }
  if (step >= OutputKind::kScoresBiased) {
    if (!problem_.alibi_slopes.empty()) {
      const std::int64_t position = IndexOf(row) + problem_.q_offset[static_cast<std::size_t>(b_)];
      AddDistanceBias(scores, problem_.alibi_slopes[static_cast<std::size_t>(HeadOf(row))],
                      static_cast<float>(position - key), columns);
    }
    if (problem_.bias.has_value()) AddBias(scores, BiasRow(row, key, columns), columns);
  }
  Exclude(scores, row, key, columns);
}

void QueryTile::FinishLogits(Rows rows, std::int64_t key, std::int64_t columns) {
  const bool all_visible = key >= common_.first && key + columns <= common_.end;
  const bool padded = columns % kSoftmaxColumnsStep == 0;
  if (plan_.folded && mask_ == MaskSummary::kAllTrue && all_visible && padded) return;
  const OutputKind step = plan_.folded ? OutputKind::kScoresDot : OutputKind::kScoresBiased;
  for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row) {
    float* const scores = scores_ + row * kTileStride;
    StepsTo(step, scores, row, key, columns);
    std::fill(scores + columns, scores + PaddedColumns(columns), kMinusInfinity);
  }
}

// values_ [columns, d_v]: these keys' values with those of excluded keys cleared, since 0 * NaN is not 0.
void QueryTile::Sanitize(std::int64_t row, std::int64_t key, std::int64_t columns) {
  const float* const scores = scores_ + row * kTileStride;
  for (std::int64_t j = 0; j < columns; ++j) {
    float* const target = values_ + j * problem_.d_v;
    if (scores[j] == kMinusInfinity && !Allowed(row, key + j)) {
      std::fill_n(target, problem_.d_v, 0.0F);
    } else {
      WidenToFloat(plan_.v.dtype, plan_.v.Row(b_, kv_head_, key + j), problem_.d_v, target);
    }
  }
}

QueryTile::Progress QueryTile::AccumulateKeys(Rows rows, Problem::KeyRange keys, bool sanitize,
                                              const CancelToken& cancel, const WorkerContext& context) {
  float* const accumulator = accumulator_ + rows.first * problem_.d_v;
  Cursor& cursor = cursor_;
  if (!cursor.started) {
    cursor = {true, true, AlignedKey(keys.first)};
    std::fill_n(m_ + rows.first, rows.count, kMinusInfinity);
    std::fill_n(l_ + rows.first, rows.count, 0.0F);
  }
  while (cursor.key < keys.end) {
    if (cancel.ShouldStop()) return Progress::kStopped;
    if (context.ShouldPause()) return Progress::kPaused;
    const std::int64_t key = cursor.key;
    cursor.key = (key / kKeyTileColumns + 1) * kKeyTileColumns;
    const std::int64_t columns = std::min(cursor.key, keys.end) - key;
    LookAtMask(rows, key, columns);
    if (mask_ == MaskSummary::kAllFalse) continue;
    Products(rows, key, columns);
    // One row that runs again belongs to a tile that was counted.
    if (!sanitize) plan_.tiles_run.fetch_add(heads_, std::memory_order_relaxed);
    FinishLogits(rows, key, columns);
    if (sanitize) Sanitize(rows.first, key, columns);
    SoftmaxStep(
        {scores_ + rows.first * kTileStride, kTileStride, rows.count, PaddedColumns(columns), plan_.exp2_factor},
        m_ + rows.first, l_ + rows.first, alpha_ + rows.first);
    if (!cursor.first) RescaleRows(accumulator, problem_.d_v, rows.count, problem_.d_v, alpha_ + rows.first);
    AddValues(rows, key, columns, !cursor.first, sanitize);
    cursor.first = false;
  }
  if (cursor.first) std::fill_n(accumulator, rows.count * problem_.d_v, 0.0F);
  cursor = {};
  return Progress::kDone;
}

Problem::KeyRange QueryTile::KeysOfRange(Rows rows, std::int64_t range) const {
  const Problem::KeyRange keys = KeysOf(rows);
  const std::int64_t width = RangeKeys(problem_.d_k, problem_.d_v);
  return {std::max(keys.first, range * width), std::min(keys.end, (range + 1) * width)};
}

void QueryTile::StartJoin(Rows rows) {
  for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row) {
    float* const joined = joined_ + row * (2 + problem_.d_v);
    std::fill_n(joined, 2 + problem_.d_v, 0.0F);
    joined[0] = kMinusInfinity;
  }
}

void QueryTile::JoinRange(std::int64_t row, float m, float l, const float* sum) {
  if (m == kMinusInfinity && l == 0) return;  // nothing there was allowed
  float* const joined = joined_ + row * (2 + problem_.d_v);
  // The range is one more logit, m, that stands for a sum l and a value: e^(m - new m) scales both.
  float unused = 0, alpha = 0;
  const float factor = MeetLogit(m, plan_.exp2_factor, joined, &unused, &alpha);
  joined[1] = joined[1] * alpha + l * factor;
  for (std::int64_t c = 0; c < problem_.d_v; ++c) joined[2 + c] = joined[2 + c] * alpha + sum[c] * factor;
}

void QueryTile::FinishJoin(Rows rows) {
  for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row) {
    const float* const joined = joined_ + row * (2 + problem_.d_v);
    m_[row] = joined[0];
    l_[row] = joined[1];
    std::copy_n(joined + 2, problem_.d_v, accumulator_ + row * problem_.d_v);
  }
}

QueryTile::Progress QueryTile::AccumulateAgain(std::int64_t row, const CancelToken& cancel,
                                               const WorkerContext& context) {
  const Rows alone{row, 1};
  const std::int64_t ranges = Ranges(problem_, b_);
  if (ranges == 0) return AccumulateKeys(alone, KeysOf(alone), /*sanitize=*/true, cancel, context);
  if (joined_ranges_ == 0 && !cursor_.started) StartJoin(alone);
  for (; joined_ranges_ < ranges; ++joined_ranges_) {
    const Progress progress =
        AccumulateKeys(alone, KeysOfRange(alone, joined_ranges_), /*sanitize=*/true, cancel, context);
    if (progress != Progress::kDone) return progress;
    JoinRange(row, m_[row], l_[row], accumulator_ + row * problem_.d_v);
  }
  joined_ranges_ = 0;
  FinishJoin(alone);
  return Progress::kDone;
}

bool QueryTile::AttendRange(std::int64_t range, const CancelToken& cancel, const WorkerContext& context) {
  const Progress progress =
      AccumulateKeys(AllRows(), KeysOfRange(AllRows(), range), /*sanitize=*/false, cancel, context);
  if (progress != Progress::kDone) return progress == Progress::kStopped;
  for (std::int64_t row = 0; row < AllRows().count; ++row) {
    float* const part = plan_.Part(b_, range, HeadOf(row), IndexOf(row));
    part[0] = m_[row];
    part[1] = l_[row];
    std::copy_n(accumulator_ + row * problem_.d_v, problem_.d_v, part + 2);
  }
  return true;
}

QueryTile::Progress QueryTile::JoinParts(const CancelToken& cancel, const WorkerContext& context) {
  if (joined_ranges_ == 0) StartJoin(AllRows());
  for (; joined_ranges_ < Ranges(problem_, b_); ++joined_ranges_) {
    if (cancel.ShouldStop()) return Progress::kStopped;
    if (context.ShouldPause()) return Progress::kPaused;
    for (std::int64_t row = 0; row < AllRows().count; ++row) {
      const float* const part = plan_.Part(b_, joined_ranges_, HeadOf(row), IndexOf(row));
      JoinRange(row, part[0], part[1], part + 2);
    }
  }
  joined_ranges_ = 0;
  FinishJoin(AllRows());
  return Progress::kDone;
}

bool QueryTile::Allowed(std::int64_t row, std::int64_t key) const {
  const std::int64_t h = HeadOf(row), i = IndexOf(row);
  const Problem::KeyRange keys = problem_.VisibleKeys(b_, i);
  if (key < keys.first || key >= keys.end) return false;
  if (problem_.mask.has_value() && problem_.mask->Row(b_, h, i)[key * problem_.mask->stride[3]] == std::byte{0}) {
    return false;
  }
  if (!problem_.bias.has_value()) return true;
  const TensorView& bias = *problem_.bias;
  float value = 0;
  WidenToFloat(bias.dtype, bias.Row(b_, h, i) + key * bias.stride[3] * ElementBytes(bias.dtype), 1, &value);
  return value != kMinusInfinity;
}

bool QueryTile::AnyAllowed(std::int64_t row) const {
  const Problem::KeyRange keys = problem_.VisibleKeys(b_, IndexOf(row));
  for (std::int64_t key = keys.first, end = key; key < keys.end; key = end) {
    end = std::min(key + kKeyTileColumns, keys.end);
    if (problem_.mask.has_value() && MaskOf(row, key, end - key) == MaskSummary::kAllFalse) continue;
    for (std::int64_t one = key; one < end; ++one) {
      if (Allowed(row, one)) return true;
    }
  }
  return false;
}

bool QueryTile::MayHoldExcluded(std::int64_t row) const {
  if (problem_.mask.has_value() || problem_.bias.has_value()) return true;
  const Problem::KeyRange own = problem_.VisibleKeys(b_, IndexOf(row)), all = KeysOf(AllRows());
  return own.end < all.end || own.first > AlignedKey(all.first);
}

void QueryTile::MergeSink(std::int64_t row) {
  if (problem_.sinks.empty()) return;
  const float sink = problem_.sinks[static_cast<std::size_t>(HeadOf(row))];
  if (sink == kMinusInfinity) return;
  // One more logit without a value, met last: where the row's maximum stands the accumulator stays as it is.
  MeetLogit(sink, plan_.exp2_factor, m_ + row, l_ + row, alpha_ + row);
  RescaleRows(accumulator_ + row * problem_.d_v, problem_.d_v, 1, problem_.d_v, alpha_ + row);
}

QueryTile::Progress QueryTile::FinishRow(std::int64_t row, const CancelToken& cancel, const WorkerContext& context) {
  float* const output = accumulator_ + row * problem_.d_v;
  if (!again_) {
    const bool nothing_summed = m_[row] == kMinusInfinity;
    // All keys of such rows are looked at, which may take long together.
    if (nothing_summed && cancel.ShouldStop()) return Progress::kStopped;
    if (nothing_summed && context.ShouldPause()) return Progress::kPaused;
    const bool empty = nothing_summed && !AnyAllowed(row);
    // Allowed keys whose logits are all NaN never showed in the maximum, only in the sum.
    if (nothing_summed && !empty && std::isnan(l_[row])) m_[row] = kNan;
    MergeSink(row);
    if (empty) {
      std::fill_n(output, problem_.d_v, 0.0F);
      lse_[row] = m_[row];  // -inf, or the sink: l is e^0
      l_[row] = 0;          // weights of this row are 0
      return Progress::kDone;
    }
    if (m_[row] == kMinusInfinity || std::isnan(m_[row])) {
      // Allowed logits that are all -inf, or NaN.
      l_[row] = kNan;
      std::fill_n(output, problem_.d_v, kNan);
      lse_[row] = kNan;
      return Progress::kDone;
    }
    // Perhaps a NaN or an infinity in the value of a key that this row may not see. Again, alone, with such values
    // cleared: the same operations on the same numbers otherwise, so the same bytes as if they had been finite.
    again_ = !DivideRow(output, l_[row], problem_.d_v) && std::isfinite(l_[row]) && MayHoldExcluded(row);
  }
  if (again_) {
    const Progress progress = AccumulateAgain(row, cancel, context);
    if (progress != Progress::kDone) return progress;
    again_ = false;
    MergeSink(row);
    DivideRow(output, l_[row], problem_.d_v);
  }
  if (problem_.Wants(OutputKind::kLse))
    lse_[row] = static_cast<double>(m_[row]) * plan_.unit + std::log(static_cast<double>(l_[row]));
  return Progress::kDone;
}

void QueryTile::StoreHead(std::int64_t head, RowSink& sink, const double* lse) {
  std::int64_t nonfinite = 0;
  const float* const outputs = accumulator_ + head * live_rows_ * problem_.d_v;
  if (plan_.heads_out.data() != nullptr) {
    for (std::int64_t row = 0; row < rows_; ++row) {
      float* const target = plan_.heads_out.data() +
                            ((b_ * problem_.q_rows + first_row_ + row) * problem_.q_heads + h_ + head) * problem_.d_v;
      if (row >= live_rows_) {
        std::fill_n(target, problem_.d_v, 0.0F);
        continue;
      }
      nonfinite += AnyNonFinite(outputs + row * problem_.d_v, problem_.d_v);
      std::copy_n(outputs + row * problem_.d_v, problem_.d_v, target);
    }
  } else {
    const RowBlock block{OutputKind::kOutput, problem_.output_dtype, b_, h_ + head, first_row_, rows_, problem_.d_v};
    const RowSpan span = sink.Open(block);
    for (std::int64_t row = 0; row < rows_; ++row) {
      std::byte* const target = span.data + row * span.stride_bytes;
      if (row >= live_rows_) {
        std::fill_n(target, problem_.d_v * ElementBytes(block.dtype), std::byte{0});
        continue;
      }
      nonfinite += !NarrowFromFloat(block.dtype, outputs + row * problem_.d_v, problem_.d_v, target);
    }
    sink.Close(block, span);
  }
  if (nonfinite > 0) plan_.nonfinite_rows += nonfinite;
  if (!problem_.Wants(OutputKind::kLse)) return;
  const RowBlock block{OutputKind::kLse, DType::kFloat32, b_, h_ + head, first_row_, rows_, 1};
  const RowSpan span = sink.Open(block);
  for (std::int64_t row = 0; row < rows_; ++row) {
    const float value = row < live_rows_ ? static_cast<float>(lse[row]) : kMinusInfinity;
    NarrowFromFloat(DType::kFloat32, &value, 1, span.data + row * span.stride_bytes);
  }
  sink.Close(block, span);
}

void QueryTile::KeepRowState(std::int64_t head) {
  if (plan_.row_m.data() == nullptr) return;
  const std::int64_t index = plan_.RowIndex(b_, h_ + head, first_row_);
  std::copy_n(m_ + head * live_rows_, live_rows_, plan_.row_m.data() + index);
  std::copy_n(l_ + head * live_rows_, live_rows_, plan_.row_l.data() + index);
}

bool QueryTile::Attend(RowSink& sink, const CancelToken& cancel, const WorkerContext& context) {
  if (!accumulated_) {
    const Progress progress = Ranges(problem_, b_) > 0 && live_rows_ > 0
                                  ? JoinParts(cancel, context)
                                  : AccumulateKeys(AllRows(), KeysOf(AllRows()), /*sanitize=*/false, cancel, context);
    if (progress != Progress::kDone) return progress == Progress::kStopped;
    accumulated_ = true;
  }
  for (; finished_rows_ < AllRows().count; ++finished_rows_) {
    const Progress progress = FinishRow(finished_rows_, cancel, context);
    if (progress != Progress::kDone) return progress == Progress::kStopped;
  }
  if (cancel.ShouldStop()) return true;
  for (std::int64_t head = 0; head < heads_; ++head) {
    KeepRowState(head);
    StoreHead(head, sink, lse_ + head * live_rows_);
  }
  return true;
}

}  // namespace attnd
