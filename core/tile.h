// One query tile: its logits against a tile of keys, the online softmax over all of them, and the finished rows. Its
// rows are up to tile_rows queries of one head or, for a sequence of a few queries, those of all heads that share a kv
// head. Thread rule: a QueryTile belongs to one worker; tiles of one plan run at the same time.
#pragma once

#include <cstdint>
#include <span>

#include "core/executor.h"
#include "core/open_blocks.h"
#include "core/row_sink.h"
#include "core/softmax.h"
#include "core/tile_plan.h"

namespace attnd {

class QueryTile {
 public:
  // Rows [first_row, first_row + rows) of heads [h, h + heads) of sequence b, which share a kv head. rows <=
  // plan.tile_rows, and so are the rows below q_len[b] of all heads together.
  QueryTile(TilePlan& plan, Scratch& scratch, std::int64_t b, std::int64_t h, std::int64_t heads,
            std::int64_t first_row, std::int64_t rows);

  static std::int64_t ScratchBytes(const ScratchFloats& pieces);

  // The three below return false when they gave way to others (context.ShouldPause), with what they came to in the
  // tile's scratch: call again to go on. True when done or when `cancel` stopped it. A tile is for one of them.

  // Where keys are cut, before Attend: one range by itself into the plan's parts.
  bool AttendRange(std::int64_t range, const CancelToken& cancel, const WorkerContext& context);

  // Output and LSE of all rows.
  bool Attend(RowSink& sink, const CancelToken& cancel, const WorkerContext& context);

  // Weights and scores of all rows, from the (m, l) that Attend left in the plan. What is open stays so while others
  // have their turn; `blocks` is empty at first.
  bool Emit(std::span<const OutputKind> kinds, OpenBlocks& blocks, const CancelToken& cancel,
            const WorkerContext& context);

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
  enum class Progress { kDone, kStopped, kPaused };
  // Where AccumulateKeys and Emit go on.
  struct Cursor {
    bool started = false, first = true;  // first: no key tile counted yet
    std::int64_t key = 0;
  };
  // m_, l_ and accumulator_ of one row over all keys, again, with excluded values cleared.
  Progress AccumulateAgain(std::int64_t row, const CancelToken& cancel, const WorkerContext& context);
  // m_, l_ and accumulator_ of `rows` over some keys, from where cursor_ stands; it starts anew after the last.
  Progress AccumulateKeys(Rows rows, Problem::KeyRange keys, bool sanitize, const CancelToken& cancel,
                          const WorkerContext& context);
  // The plan's parts of all ranges into m_, l_ and accumulator_.
  Progress JoinParts(const CancelToken& cancel, const WorkerContext& context);
  // Those of KeysOf(rows) that lie in range `range`.
  Problem::KeyRange KeysOfRange(Rows rows, std::int64_t range) const;
  // Takes one range's (m, l, sum) into a row's joined ones, which begin at StartJoin and end in m_, l_ and
  // accumulator_.
  void StartJoin(Rows rows);
  void JoinRange(std::int64_t row, float m, float l, const float* sum);
  void FinishJoin(Rows rows);
  void Sanitize(std::int64_t row, std::int64_t key, std::int64_t columns);
  bool AnyAllowed(std::int64_t row) const;
  bool Allowed(std::int64_t row, std::int64_t key) const;
  bool MayHoldExcluded(std::int64_t row) const;
  // Takes the sink into m, l and the accumulated row.
  void MergeSink(std::int64_t row);
  // Divides one accumulated row, and notes its LSE where that is wanted.
  Progress FinishRow(std::int64_t row, const CancelToken& cancel, const WorkerContext& context);
  // Rows of head h_ + `head`: lse [rows of this head].
  void StoreHead(std::int64_t head, RowSink& sink, const double* lse);
  void KeepRowState(std::int64_t head);
  // Columns [key, key + columns) of one row of one kind, the first `computed` of them from scores_.
  void EmitRow(OutputKind kind, std::int64_t row, std::int64_t key, std::int64_t columns, std::int64_t computed,
               float* target);
  // A row without an ordinary maximum and sum: 0 where excluded, NaN where allowed.
  bool HasSpecialWeights(std::int64_t row) const;
  void EmitSpecialWeights(std::int64_t row, std::int64_t key, std::int64_t columns, float* target) const;

  TilePlan& plan_;
  const Problem& problem_;
  const std::int64_t b_, h_, heads_, kv_head_, first_row_, rows_;
  const bool in_place_;
  std::int64_t live_rows_ = 0;  // of rows_, below q_len[b]
  MaskSummary mask_ = MaskSummary::kMixed;
  Problem::KeyRange common_, any_;      // keys that all live rows, and that any of them, may see by position
  const float* q_ = nullptr;            // [rows, d_k]
  const std::byte* q_pairs_ = nullptr;  // the same in bfloat16, where scores are made of pairs
  std::int64_t q_stride_ = 0;
  float* scores_ = nullptr;       // [rows, 256]
  float* accumulator_ = nullptr;  // [rows, d_v]
  float* tile_sums_ = nullptr;    // [rows, d_v], what one key tile adds where V is read in place
  float* joined_ = nullptr;       // [rows, 2 + d_v], m, l and the sum over joined ranges
  float* values_ = nullptr;       // [256, d_v], widened, or those of excluded keys cleared
  float* packed_ = nullptr;       // [packed_depth, packed_stride], unless packed ahead
  float* bias_ = nullptr;         // [256]
  double* lse_ = nullptr;         // [rows]
  Cursor cursor_;
  // Of Attend: ranges joined (also of the row that is computed again), whether all rows are accumulated, how many are
  // finished, and whether the next of them is computed again.
  std::int64_t joined_ranges_ = 0;
  bool accumulated_ = false;
  std::int64_t finished_rows_ = 0;
  bool again_ = false;
  float *m_ = nullptr, *l_ = nullptr, *alpha_ = nullptr;  // [rows]
};

}  // namespace attnd
