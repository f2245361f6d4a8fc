// Tile sizes, in one place: pure arithmetic, no kernels, the same on every machine.
// Thread rule: constants and pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/checked.h"

namespace attnd {

// Keys of one tile. A row meets its keys tile by tile from key 0, so this constant is part of what a row's bytes depend
// on.
constexpr std::int64_t kKeyTileColumns = 256;
// Floats from one row of scores to the next: not a power of two, so that a column of rows does not fall into a few
// cache sets.
constexpr std::int64_t kTileStride = kKeyTileColumns + 16;
// The same for a packed key tile of `kv_rows` keys in all; a few keys take no more room than they need.
constexpr std::int64_t PackedStride(std::int64_t kv_rows) { return std::min(kTileStride, CeilDiv(kv_rows, 16) * 16); }

constexpr std::int64_t kQueryTileRowsMax = 128;
// Query rows of one tile: fewer where rows are wide, so that a tile's rows of q and of the accumulator stay near the
// core, and fewer where a causal frontier or a window cuts tiles, so that less is computed beyond it. It changes speed
// and never bytes.
constexpr std::int64_t QueryTileRows(std::int64_t d_k, std::int64_t d_v, bool frontier) {
  constexpr std::int64_t kRowsMin = 8, kElementsMax = std::int64_t{1} << 17;
  const std::int64_t rows = std::clamp(kElementsMax / (d_k + d_v), kRowsMin, kQueryTileRowsMax);
  return frontier ? std::min<std::int64_t>(rows, 64) : rows;
}

// A sequence with so few queries, or so little in all, reads K and V where they lie: packing would cost more than the
// products. This decides which arithmetic a row meets, so it may depend on the sequence's own lengths alone.
constexpr std::int64_t kInPlaceQueriesMax = 4;
constexpr bool ReadsInPlace(std::int64_t q_len, std::int64_t kv_len) {
  constexpr std::int64_t kPairs = 64;
  return q_len <= kInPlaceQueriesMax || kv_len <= kPairs / q_len;
}

// Keys of one range, a multiple of kKeyTileColumns. A sequence of a few queries over more keys than that is cut at its
// multiples; the ranges are computed apart, by any worker, and joined in their order. It is part of what a row's bytes
// depend on.
constexpr std::int64_t RangeKeys(std::int64_t d_k, std::int64_t d_v) {
  constexpr std::int64_t kElements = std::int64_t{1} << 19;  // of K and V: about 2 MiB
  return std::max<std::int64_t>(1, kElements / (d_k + d_v) / kKeyTileColumns) * kKeyTileColumns;
}

// Rows of x that share one product, and the block of its weights.
constexpr std::int64_t kProjectionRows = 128;
constexpr std::int64_t kProjectionColumns = 256;
constexpr std::int64_t kProjectionDepth = 256;

// Elements of each row of K and V that one unit packs.
constexpr std::int64_t kPackedTogether = 1024;

// Bytes of rows that one unit hands to the sink when whole rows of weights or scores are wanted.
constexpr std::int64_t kEmitBytes = std::int64_t{1} << 20;

}  // namespace attnd
