// One query tile of one head: its logits against a tile of keys, the online softmax over all of them, and the finished
// rows. Everything that units of a problem share stands in TilePlan. Thread rule: a TilePlan is written by the phases
// of one job, each unit its own part; a QueryTile belongs to one worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "core/attention.h"
#include "core/buffer.h"
#include "core/executor.h"
#include "core/problem.h"
#include "core/softmax.h"

namespace attnd {

struct TilePlan {
  explicit TilePlan(const Problem& validated);

  const Problem& problem;
  TensorView q, k, v;  // [B, H, N, d], projected and turned where that was asked
  TensorView wide_v;   // v in float32: itself, or packed_v
  std::int64_t tile_rows = 0, key_tiles = 0, packed_stride = 0;

  AlignedBuffer<float> packed_k;     // [B * Hkv, key_tiles, d_k, packed_stride]: K transposed, once for all query tiles
                                     // and heads of a group
  AlignedBuffer<float> packed_v;     // [B * Hkv, Nk, d_v], when v came narrower than float32
  AlignedBuffer<float> projected_q;  // [B, N, Hq, d_k], with x
  AlignedBuffer<float> projected_k;  // [B, N, Hkv, d_k], with x
  AlignedBuffer<float> projected_v;  // [B, N, Hkv, d_v], with x
  AlignedBuffer<float> turned_q;     // [B, Nq, Hq, d_k], with rotary and without x
  AlignedBuffer<float> turned_k;     // [B, Nk, Hkv, d_k], likewise
  AlignedBuffer<float> heads_out;    // [B, Nq, Hq, d_v], with w_o
  AlignedBuffer<float> row_m, row_l;  // [B * Hq * Nq], when weights are wanted: a row's final maximum and sum

  // Logits are scores * unit. Where nothing is added to q . k and scale is an ordinary positive number, scores stay
  // unscaled and scale is folded into the exponential (unit = scale); else scores are scaled first (unit = 1).
  bool folded = false;
  float scale = 0, unit = 0, exp2_factor = 0;

  std::atomic<std::int64_t> nonfinite_rows{0};

  std::int64_t RowIndex(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return (b * problem.q_heads + h) * problem.q_rows + i;
  }
  // True when sequence b reads K and V where they lie; its keys are not packed.
  bool InPlace(std::int64_t b) const;
  const float* KeyTile(std::int64_t b, std::int64_t kv_head, std::int64_t tile) const;
};

// False when every sequence reads K and V in place.
bool NeedsPacking(const Problem& problem);

// Token n of q (or of k) of sequence b with its rotary embedding: in place where x was projected, else from what came.
void TurnQuery(TilePlan& plan, std::int64_t b, std::int64_t n, std::byte* scratch);
void TurnKey(TilePlan& plan, std::int64_t b, std::int64_t n, std::byte* scratch);

// Fills key tile `tile` of one kv head, and its rows of packed_v. Keys at kv_len[b] and beyond are not read.
void PackKeys(TilePlan& plan, std::int64_t b, std::int64_t kv_head, std::int64_t tile);

class QueryTile {
 public:
  // Rows [first_row, first_row + rows) of heads [h, h + heads) of sequence b, which share a kv head. rows <=
  // plan.tile_rows, and so are the rows below q_len[b] of all heads together.
  QueryTile(TilePlan& plan, Scratch& scratch, std::int64_t b, std::int64_t h, std::int64_t heads,
            std::int64_t first_row, std::int64_t rows);

  static std::int64_t ScratchBytes(const Problem& problem);

  // Output and LSE of all rows. False when `cancel` stopped it.
  bool Attend(RowSink& sink, const CancelToken& cancel);

  // Weights and scores of all rows, from the (m, l) that Attend left in the plan.
  bool Emit(std::span<const OutputKind> kinds, RowSink& sink, const CancelToken& cancel);

 private:
  // Below, a row is one of the live rows of all heads, head by head: [0, heads * live_rows).
  struct Rows {
    std::int64_t first = 0, count = 0;
  };
  Rows AllRows() const { return {0, heads_ * live_rows_}; }
  std::int64_t HeadOf(std::int64_t row) const { return heads_ == 1 ? h_ : h_ + row / live_rows_; }
  std::int64_t IndexOf(std::int64_t row) const { return first_row_ + (heads_ == 1 ? row : row % live_rows_); }

  // Of one row, or of all.
  Problem::KeyRange KeysOf(Rows rows) const;
  // q . k of `rows` and keys [key, key + columns), which lie in one key tile, into scores_.
  void Products(Rows rows, std::int64_t key, std::int64_t columns);
  // accumulator_ = or += scores_ times the values of these keys; `sanitized` takes values_ instead.
  void AddValues(Rows rows, std::int64_t key, std::int64_t columns, bool add, bool sanitized);
  // The steps from q . k to `step` (a kind of scores) on one row, then -inf where a rule excludes.
  void StepsTo(OutputKind step, float* scores, std::int64_t row, std::int64_t key, std::int64_t columns);
  void Exclude(float* scores, std::int64_t row, std::int64_t key, std::int64_t columns);
  // StepsTo the logits that the exponential takes, on all rows.
  void FinishLogits(Rows rows, std::int64_t key, std::int64_t columns);
  // Sets mask_ to what the mask says about these keys for all rows together.
  void LookAtMask(Rows rows, std::int64_t key, std::int64_t columns);
  MaskSummary MaskOf(std::int64_t row, std::int64_t key, std::int64_t columns) const;
  const float* BiasRow(std::int64_t row, std::int64_t key, std::int64_t columns);
  bool Accumulate(Rows rows, bool sanitize, const CancelToken& cancel);
  void Sanitize(std::int64_t row, std::int64_t key, std::int64_t columns);
  std::int64_t AllowedKeys(std::int64_t row) const;
  bool Allowed(std::int64_t row, std::int64_t key) const;
  bool MayHoldExcluded(std::int64_t row) const;
  // Takes the sink into m, l and the accumulated row.
  void MergeSink(std::int64_t row);
  // Divides one accumulated row. Returns its LSE, where that is wanted.
  double FinishRow(std::int64_t row, const CancelToken& cancel);
  // Rows of head h_ + `head`: lse [rows of this head].
  void StoreHead(std::int64_t head, RowSink& sink, const double* lse);
  void KeepRowState(std::int64_t head);
  void EmitRow(OutputKind kind, std::int64_t row, std::int64_t key, std::int64_t columns, float* target);
  void EmitSpecialWeights(std::int64_t row, std::byte* target) const;

  TilePlan& plan_;
  const Problem& problem_;
  const std::int64_t b_, h_, heads_, kv_head_, first_row_, rows_;
  const bool in_place_;
  std::int64_t live_rows_ = 0;  // of rows_, below q_len[b]
  MaskSummary mask_ = MaskSummary::kMixed;
  Problem::KeyRange common_, any_;  // keys that all live rows, and that any of them, may see by position
  const float* q_ = nullptr;        // [rows, d_k]
  std::int64_t q_stride_ = 0;
  float* scores_ = nullptr;                               // [rows, 256]
  float* accumulator_ = nullptr;                          // [rows, d_v]
  float* values_ = nullptr;                               // [256, d_v], values of excluded keys cleared
  float* bias_ = nullptr;                                 // [256]
  float *m_ = nullptr, *l_ = nullptr, *alpha_ = nullptr;  // [rows]
};

}  // namespace attnd
