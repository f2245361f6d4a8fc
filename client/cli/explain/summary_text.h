// A summary of weights as JSON and as tables. Thread rule: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "client/cli/explain/summary.h"

namespace attnd::client {

// Whose weights they are.
struct SummaryTitle {
  std::string server;
  std::int64_t sequence = 0;
  std::int64_t position = 0;           // of row 0 among the keys
  std::vector<std::string> key_names;  // as many as the caller gave
  std::size_t head = 0;                // the one whose heat map is printed
};

// What the page draws. Numbers are rounded to six digits.
nlohmann::ordered_json SummaryJson(const WeightsSummary& summary, const SummaryTitle& title);

// Of the same JSON: what each head does, and for one head its heat map, distances, keys and rows.
void PrintSummary(const nlohmann::ordered_json& json, std::ostream& out);

}  // namespace attnd::client
