#include "core/arrival.h"

#include <algorithm>

#include "core/checked.h"
#include "core/tiling.h"

namespace attnd {
namespace {

// Leading (sequence, head) of a tensor that are whole, and rows of the next one.
struct Came {
  std::int64_t heads = 0, rows = 0;
};

// What was projected from x is not waited for: the phase before has it whole.
Came CameOf(const Problem& problem, const TensorView& view, const std::atomic<std::int64_t>& counted) {
  const std::int64_t bytes = counted.load(std::memory_order_acquire);
  const std::int64_t all = view.shape[0] * view.shape[1];
  const std::int64_t row_bytes = view.shape[3] * ElementBytes(view.dtype);
  if (problem.projection.has_value() || all * view.shape[2] * row_bytes == 0) return {all, 0};
  if (view.paged()) {
    const std::int64_t pages_bytes = view.pages.count * view.shape[1] * view.pages.rows * row_bytes;
    return bytes >= pages_bytes ? Came{all, 0} : Came{};
  }
  const std::int64_t rows = bytes / row_bytes;
  if (problem.layout == Layout::kBNHD) return {rows / (view.shape[1] * view.shape[2]) * view.shape[1], 0};
  return {rows / view.shape[2], rows % view.shape[2]};
}

}  // namespace

std::int64_t RowBlocksOfX(const Problem& problem, std::int64_t block_rows, const Arrived& arrived) {
  const TensorView& x = problem.projection->x;
  const std::int64_t all = x.shape[0] * x.shape[2], row_bytes = x.shape[3] * ElementBytes(x.dtype);
  const std::int64_t rows = row_bytes == 0 ? all : arrived.x.load(std::memory_order_acquire) / row_bytes;
  return rows >= all ? CeilDiv(all, block_rows) : rows / block_rows;
}

std::int64_t KeyTilesReady(const Problem& problem, std::int64_t key_tiles, bool values, const Arrived& arrived) {
  const auto tiles = [&](const TensorView& view, const std::atomic<std::int64_t>& bytes) {
    const Came came = CameOf(problem, view, bytes);
    return came.heads * key_tiles + came.rows / kKeyTileColumns;
  };
  const std::int64_t of_keys = tiles(problem.k, arrived.k);
  return values ? std::min(of_keys, tiles(problem.v, arrived.v)) : of_keys;
}

std::int64_t QueryTilesReady(const Problem& problem, std::int64_t tile_rows, bool whole_groups,
                             const Arrived& arrived) {
  const std::int64_t group = problem.q_heads / problem.kv_heads, tiles = CeilDiv(problem.q_rows, tile_rows);
  const Came q = CameOf(problem, problem.q, arrived.q);
  const std::int64_t of_queries = whole_groups ? q.heads / group * group * tiles : q.heads * tiles + q.rows / tile_rows;
  const std::int64_t kv_heads =
      std::min(CameOf(problem, problem.k, arrived.k).heads, CameOf(problem, problem.v, arrived.v).heads);
  return std::min(of_queries, kv_heads * group * tiles);
}

std::int64_t SequencesOfQ(const Problem& problem, const Arrived& arrived) {
  return CameOf(problem, problem.q, arrived.q).heads / problem.q_heads;
}

std::int64_t SequencesOfK(const Problem& problem, const Arrived& arrived) {
  return CameOf(problem, problem.k, arrived.k).heads / problem.kv_heads;
}

std::int64_t SequencesReady(const Problem& problem, const Arrived& arrived) {
  const std::int64_t of_v = CameOf(problem, problem.v, arrived.v).heads / problem.kv_heads;
  return std::min({SequencesOfQ(problem, arrived), SequencesOfK(problem, arrived), of_v});
}

}  // namespace attnd
