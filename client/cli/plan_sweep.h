// What a problem costs as it gets longer: compute and memory over the number of tokens, and the figures that lessons
// about attention give, each asked of the server. Thread rule: one thread.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace attnd::client {

// The problem at a number of tokens, queries and keys alike.
using PlanOfLength = std::function<absl::StatusOr<v1::PlanRequest>(std::int64_t tokens)>;

// Plans at every power of two from 1024 to 1,048,576 tokens, as {"lengths": [{"tokens", and every field of
// PlanResponse}], "figures": [{"tokens", "heads", "layers", "d", "field", "value", "says"}]}.
absl::StatusOr<nlohmann::ordered_json> PlanLengths(Client& client, const PlanOfLength& plan_of);

void PrintLengths(const nlohmann::ordered_json& json, std::ostream& out);

}  // namespace attnd::client
