// Two reports of bench: what changed by more than chance.
// Thread rule: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace attnd::client {

struct Change {
  std::string where, metric;  // "rate 100", "p99"
  double before = 0, after = 0;
  double change = 0, low = 0, high = 0;  // after / before - 1, and the ends of its 99 % interval
  enum Verdict { kNoise, kBetter, kWorse, kTooShort } verdict = kNoise;
};

// Points with the same rate or the same number of callers, by throughput, mean, p50 and p99 of the steps of their
// timelines: means over steps, with the interval that resampling runs of three steps gives (a circular block bootstrap,
// seeded), so that neighbours that move together are not counted as independent. Worse or better is what lies beyond
// `least` (0.03: 3 %) with its whole interval. Where either run has requests that were not answered, their share of
// what was due is compared too: its change is a difference, with the interval of two binomial shares, and counts from 0
// on. INVALID_ARGUMENT when the reports have no point in common or are none.
absl::StatusOr<std::vector<Change>> Compare(const nlohmann::json& before, const nlohmann::json& after, double least);

std::string ChangesTable(const std::vector<Change>& changes);

}  // namespace attnd::client
