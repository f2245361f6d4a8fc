#include "core/cost.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/attention.h"
#include "core/checked.h"
#include "core/tile_plan.h"
#include "core/tiling.h"

namespace attnd {
namespace {

// The sum over i in [0, rows) of clamp(start + i, 0, cap), in closed form.
__int128 SumOfClamped(__int128 start, __int128 rows, __int128 cap) {
  const __int128 rising = std::clamp<__int128>(-start, 0, rows);            // before it: 0
  const __int128 capped = std::clamp<__int128>(cap - start, rising, rows);  // from it on: cap
  const __int128 count = capped - rising;
  return count * (start + rising) + count * (count - 1) / 2 + (rows - capped) * cap;
}

// Row and key pairs of one head of sequence b that lengths, causal frontier and window leave.
std::int64_t VisiblePairs(const Problem& problem, std::int64_t b) {
  const __int128 rows = problem.q_len[b], keys = problem.kv_len[b], offset = problem.q_offset[b];
  // A row's range ends at clamp(p + right + 1) and begins at clamp(p - left); the end is never before the beginning.
  __int128 ends = rows * keys, begins = 0;
  if (problem.causal || problem.window_right) {
    const std::int64_t right = problem.causal ? 0 : *problem.window_right;
    ends = SumOfClamped(offset + right + 1, rows, keys);
  }
  if (problem.window_left) begins = SumOfClamped(offset - *problem.window_left, rows, keys);
  return static_cast<std::int64_t>(ends - begins);  // at most rows * keys, which was counted before
}

// Counts that remember whether one of them did not fit.
class Counter {
 public:
  std::int64_t Product(std::initializer_list<std::int64_t> factors) { return Take(CheckedProduct(factors)); }
  std::int64_t Sum(std::initializer_list<std::int64_t> terms) { return Take(CheckedSum(terms)); }
  std::int64_t Take(std::optional<std::int64_t> count) {
    if (!count) fits_ = false;
    return count.value_or(0);
  }
  bool fits() const { return fits_; }

 private:
  bool fits_ = true;
};

std::int64_t OutputBytes(const Problem& problem, OutputKind kind) {
  const auto [b, h, rows, columns] = problem.OutputShape(kind);
  return b * h * rows * columns * ElementBytes(problem.OutputDType(kind));  // fits: Problem::Create saw to it
}

// The values of q, k, v and of the attention output, one token's worth of each.
struct TokenWidths {
  std::int64_t q = 0, k = 0, v = 0, attended = 0;
};

void CountMemory(const Problem& problem, const TokenWidths& widths, Counter& counter, Cost& cost) {
  const std::int64_t b = problem.batch, hq = problem.q_heads, hkv = problem.kv_heads;
  if (problem.reference) {
    constexpr std::int64_t kBytes = ElementBytes(DType::kFloat64);
    const std::int64_t q_bytes = counter.Product({b, problem.q_rows, widths.q, kBytes});
    const std::int64_t k_bytes = counter.Product({b, problem.kv_rows, widths.k, kBytes});
    if (problem.projection) {
      const std::int64_t v_bytes = counter.Product({b, problem.kv_rows, widths.v, kBytes});
      const std::int64_t attended = problem.projection->o ? widths.attended : 0;
      cost.projected_bytes =
          counter.Sum({q_bytes, k_bytes, v_bytes, counter.Product({b, problem.q_rows, attended, kBytes})});
    }
    if (problem.rotary) cost.projected_bytes = counter.Sum({cost.projected_bytes, q_bytes, k_bytes});  // turned copies
  } else {
    constexpr std::int64_t kBytes = ElementBytes(DType::kFloat32);
    const std::int64_t padded_keys = CeilDiv(problem.kv_rows, kKeyTileColumns) * PackedStride(problem.kv_rows);
    if (PacksAhead(problem)) cost.packed_k_bytes = counter.Product({b, hkv, padded_keys, PackedDepth(problem), kBytes});
    if (PacksValuesAhead(problem)) cost.packed_v_bytes = counter.Product({b, problem.kv_rows, widths.v, kBytes});
    if (problem.projection) {
      const std::int64_t width =
          counter.Sum({widths.q, widths.k, widths.v, problem.projection->o ? widths.attended : 0});
      cost.projected_bytes = counter.Product({b, problem.q_rows, width, kBytes});
    } else if (problem.rotary) {  // turned copies; projected rows turn in place
      cost.projected_bytes = counter.Sum({counter.Product({b, problem.q_rows, widths.q, kBytes}),
                                          counter.Product({b, problem.kv_rows, widths.k, kBytes})});
    }
    if (problem.Wants(OutputKind::kWeights)) cost.row_state_bytes = counter.Product({8, b, hq, problem.q_rows});
    const std::int64_t parts = counter.Take(PartFloats(problem));
    cost.row_state_bytes = counter.Sum({cost.row_state_bytes, counter.Product({parts, kBytes})});
  }
  cost.input_bytes = problem.input_bytes;
  cost.scratch_bytes_per_thread = ScratchBytesPerThread(problem);
  cost.output_bytes = OutputBytes(problem, OutputKind::kOutput);
  for (int number = 1; number < kOutputKindCount; ++number) {
    const OutputKind kind = static_cast<OutputKind>(number);
    if (problem.Wants(kind)) cost.reply_bytes += OutputBytes(problem, kind);
  }
}

}  // namespace

absl::StatusOr<Cost> EstimateCost(const Problem& problem, std::int64_t layers) {
  if (layers < 1) return absl::InvalidArgumentError(absl::StrCat("layers: ", layers, ", expected at least 1"));
  Counter counter;
  Cost cost;
  const std::int64_t b = problem.batch, hq = problem.q_heads, hkv = problem.kv_heads;
  const TokenWidths widths = {counter.Product({hq, problem.d_k}), counter.Product({hkv, problem.d_k}),
                              counter.Product({hkv, problem.d_v}), counter.Product({hq, problem.d_v})};
  const std::int64_t pair_width = counter.Sum({problem.d_k, problem.d_v});

  cost.scores_per_head = counter.Product({problem.q_rows, problem.kv_rows});
  cost.score_multiply_adds_per_head = counter.Product({cost.scores_per_head, problem.d_k});
  cost.multiply_adds_per_head = counter.Product({cost.scores_per_head, pair_width});
  cost.naive_score_bytes_per_head = counter.Product({cost.scores_per_head, 4});
  cost.naive_score_bytes = counter.Product({cost.naive_score_bytes_per_head, b, hq, layers});

  std::int64_t projection = 0;
  if (problem.projection) {
    const std::int64_t width = counter.Sum({widths.q, widths.k, widths.v});
    projection = counter.Product({b, problem.q_rows, problem.projection->d_model, width});
    if (problem.projection->o) {
      projection = counter.Sum({projection, counter.Product({b, problem.q_rows, widths.attended, problem.d_out})});
    }
  }
  const std::int64_t one_layer = counter.Sum({projection, counter.Product({b, hq, cost.multiply_adds_per_head})});
  cost.multiply_adds = counter.Product({one_layer, layers});
  cost.flops = counter.Product({cost.multiply_adds, 2});
  CountMemory(problem, widths, counter, cost);
  const std::int64_t tile_rows = QueryTileRows(problem.d_k, problem.d_v, /*frontier=*/false);
  cost.tiles = counter.Product({b, hq, CeilDiv(problem.q_rows, tile_rows), CeilDiv(problem.kv_rows, kKeyTileColumns)});

  std::int64_t pairs = 0;
  if (counter.fits()) {
    for (std::int64_t sequence = 0; sequence < b; ++sequence) pairs += VisiblePairs(problem, sequence);
  }
  const std::int64_t visible = counter.Sum({projection, counter.Product({hq, pairs, pair_width})});
  cost.flops_after_exclusion = counter.Product({visible, layers, 2});
  if (!counter.fits()) {
    return absl::InvalidArgumentError("problem: its multiply-adds or bytes do not fit a signed 64-bit integer");
  }
  return cost;
}

}  // namespace attnd
