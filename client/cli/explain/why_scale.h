// Why scores are divided by √d, measured: q · k of vectors of d random numbers of variance 1 spreads by √d, and a
// softmax of scores that far apart puts all weight on one key. Thread rule: one thread.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace attnd::client {

// For each width d from 4 to 1024 two calls of one random problem, with the scale 1/√d and with scale 1: the standard
// deviation of all scores and the mean entropy of a row's weights, in bits, both ways. The same numbers in every run.
absl::StatusOr<nlohmann::ordered_json> MeasureWhyScale(Client& client);

void PrintWhyScale(const nlohmann::ordered_json& json, std::ostream& out);

}  // namespace attnd::client
