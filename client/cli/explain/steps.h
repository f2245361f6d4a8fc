// The steps of attention of a problem, fetched from the server's float64 reference mode, as lessons about its rows.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/explain/lesson.h"
#include "client/client.h"

namespace attnd::client {

// A problem of at most this many rows and keys is shown whole.
constexpr std::int64_t kGridRowsMax = 24;
constexpr std::int64_t kGridHeadsMax = 16;

// Which row, of which head and sequence, from 0.
struct ChosenRow {
  std::int64_t row = 0, head = 0, sequence = 0;
};

// Where row `i` of sequence `b` stands among the keys: i + q_offset[b], by the contract's default where none is given.
std::int64_t PositionOf(const Problem& problem, std::int64_t b, std::int64_t i);

// `names` are those of the keys, as many as the caller gave; `source` is who computes. The grid holds every row and
// head of the sequence where that is at most the maximum above, else the chosen row alone, with the keys of
// ShownKeys. INVALID_ARGUMENT where there are no keys.
absl::StatusOr<LessonGrid> FetchSteps(Client& client, Problem problem, const ChosenRow& chosen,
                                      const std::vector<std::string>& names, const std::string& source);

}  // namespace attnd::client
