// What all units of one problem share: the tensors as the kernels read them, packed, projected and turned, and how
// logits are made. Thread rule: written by the phases of one job, each unit its own part; a phase reads what earlier
// phases wrote.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "core/buffer.h"
#include "core/checked.h"
#include "core/gemm.h"
#include "core/problem.h"

namespace attnd {

// Floats of each piece of a query tile's scratch, in QueryTile's order.
using ScratchFloats = std::array<std::int64_t, 12>;
ScratchFloats ScratchOf(const Problem& problem);

struct TilePlan {
  explicit TilePlan(const Problem& validated);

  const Problem& problem;
  TensorView q, k, v;  // [B, H, N, d], projected and turned where that was asked
  TensorView wide_v;   // v as one float32 array a head: itself, or packed_v
  std::int64_t tile_rows = 0, key_tiles = 0, packed_stride = 0;
  bool packs_ahead = false;       // see PacksAhead
  bool pairs = false;             // see TakesPairs
  std::int64_t packed_depth = 0;  // rows of a packed key tile: d_k, or half as many of pairs
  std::int64_t ranges = 0;        // RangesMax
  ScratchFloats scratch{};

  AlignedBuffer<float> packed_k;      // [B * Hkv, key_tiles, packed_depth, packed_stride]: K transposed, once for all
                                      // query tiles and heads of a group
  AlignedBuffer<float> packed_v;      // [B * Hkv, Nk, d_v], when v came narrower than float32 or in pages
  AlignedBuffer<float> projected_q;   // [B, N, Hq, d_k], with x
  AlignedBuffer<float> projected_k;   // [B, N, Hkv, d_k], with x
  AlignedBuffer<float> projected_v;   // [B, N, Hkv, d_v], with x
  AlignedBuffer<float> turned_q;      // [B, Nq, Hq, d_k], with rotary and without x
  AlignedBuffer<float> turned_k;      // [B, Nk, Hkv, d_k], likewise
  AlignedBuffer<float> heads_out;     // [B, Nq, Hq, d_v], with w_o
  AlignedBuffer<float> parts;         // [B, ranges, Hq, PartRows, 2 + d_v], see Ranges: m, l and the sum of a row
  AlignedBuffer<float> row_m, row_l;  // [B * Hq * Nq], when weights are wanted: a row's final maximum and sum

  // Logits are scores * unit. Where nothing but the scale is between q . k and the exponential, and it is an ordinary
  // positive number, scores stay unscaled and scale is folded into the exponential (unit = scale); else the steps come
  // first (unit = 1).
  bool folded = false;
  float scale = 0, unit = 0, exp2_factor = 0;
  float softcap = 0;  // as near to the problem's as float32 comes; one beyond its numbers changes no score it can hold

  std::atomic<std::int64_t> nonfinite_rows{0};
  std::atomic<std::int64_t> tiles_run{0};  // of tiles(): those that were computed for the output

  // Query tiles times key tiles, over all heads.
  std::int64_t tiles() const {
    return problem.batch * problem.q_heads * CeilDiv(problem.q_rows, tile_rows) * key_tiles;
  }
  std::int64_t RowIndex(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return (b * problem.q_heads + h) * problem.q_rows + i;
  }
  const float* KeyTile(std::int64_t b, std::int64_t kv_head, std::int64_t tile) const;
  float* Part(std::int64_t b, std::int64_t range, std::int64_t h, std::int64_t i) const;
};

// True when sequence b reads K and V where they lie; its keys are not packed.
bool InPlace(const Problem& problem, std::int64_t b);

// Ranges that the keys of sequence b are cut into, to be computed apart; 0 when they are not cut.
std::int64_t Ranges(const Problem& problem, std::int64_t b);
std::int64_t RangesMax(const Problem& problem);

// Floats of all parts: what the ranges of cut sequences come to before they are joined.
std::optional<std::int64_t> PartFloats(const Problem& problem);

// Most rows of one query tile of this problem.
std::int64_t TileRows(const Problem& problem);

// True when K is packed in a phase of its own, once for all units that meet it. Where one unit alone meets a kv head,
// that unit packs a key tile just before its products; where every sequence reads K and V in place, nobody does.
bool PacksAhead(const Problem& problem);
// Whether V is packed beside it, since the products take it as one float32 array.
bool PacksValuesAhead(const Problem& problem);

// Token n of q (or of k) of sequence b with its rotary embedding: in place where x was projected, else from what came.
void TurnQuery(TilePlan& plan, std::int64_t b, std::int64_t n, std::byte* scratch);
void TurnKey(TilePlan& plan, std::int64_t b, std::int64_t n, std::byte* scratch);

// True when q . k is made of bfloat16 pairs.
bool TakesPairs(const Problem& problem, bool machine_has_pairs = HasPairProducts());

// 4-byte elements of one packed key.
std::int64_t PackedDepth(const Problem& problem);

// Elements [first, end) of a row: of q, k and v, or of a packed key.
struct Strip {
  std::int64_t first = 0, end = 0;
};

// K of key tile `tile` of one kv head -> those rows of packed [packed_depth, packed_stride]. Keys at kv_len[b] and
// beyond are not read.
void PackKeys(const TilePlan& plan, std::int64_t b, std::int64_t kv_head, std::int64_t tile, Strip depth,
              float* packed);

// The same ahead of all units, strip by strip of kPackedTogether elements: KeyTile, and the tile's rows of packed_v.
std::int64_t PackedStrips(const Problem& problem);
void PackAhead(TilePlan& plan, std::int64_t b, std::int64_t kv_head, std::int64_t tile, std::int64_t strip);

}  // namespace attnd
