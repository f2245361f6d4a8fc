// What may start of a problem whose q, k, v or x are still coming, each from its first byte on.
//
// Everything here is about whole items in the order in which their phase counts them: the first so many are ready.
// Every count reaches "all" exactly when every byte of what the items read is there.
// Thread rule: Arrived is written by whoever receives and read by any worker; the rest are pure functions.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/problem.h"

namespace attnd {

// Bytes of each tensor that came, from the first on without a gap. They only grow, and are written before they are
// counted. Every other tensor of the problem is whole.
struct Arrived {
  std::atomic<std::int64_t> q{0}, k{0}, v{0}, x{0};
};

// Leading blocks of block_rows rows of x [B * N, d_model], the last of which may be short.
std::int64_t RowBlocksOfX(const Problem& problem, std::int64_t block_rows, const Arrived& arrived);

// Leading (sequence, kv head, key tile) whose keys are there, and with `values` whose values are too.
std::int64_t KeyTilesReady(const Problem& problem, std::int64_t key_tiles, bool values, const Arrived& arrived);

// Leading (sequence, head, tile of tile_rows rows) whose queries are there and all keys and values that they meet.
// `whole_groups`: the first head of a group takes the others along.
std::int64_t QueryTilesReady(const Problem& problem, std::int64_t tile_rows, bool whole_groups, const Arrived& arrived);

// Leading sequences of which all of q, all of k, and all three are there.
std::int64_t SequencesOfQ(const Problem& problem, const Arrived& arrived);
std::int64_t SequencesOfK(const Problem& problem, const Arrived& arrived);
std::int64_t SequencesReady(const Problem& problem, const Arrived& arrived);

}  // namespace attnd
