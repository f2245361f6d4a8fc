#include "client/cli/explain/summary_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/explain/numbers.h"
#include "client/cli/text.h"

namespace attnd::client {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kKeysListed = 8;
constexpr double kSinkShare = 0.5;  // of the rows give a sink a tenth of their weight or more
constexpr std::size_t kPrintedSide = 32, kPrintedRows = 12;

// Least, median, mean and most; all null without a number.
Json Spread(std::vector<double> values) {
  if (values.empty()) return {{"min", nullptr}, {"median", nullptr}, {"mean", nullptr}, {"max", nullptr}};
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {{"min", JsonRounded(values.front())},
          {"median", JsonRounded(median)},
          {"mean", JsonRounded(mean)},
          {"max", JsonRounded(values.back())}};
}

Json HeatJson(const HeadSummary& head) {
  Json max = Json::array(), mean = Json::array();
  for (std::int64_t r = 0; r < head.cell_rows(); ++r) {
    Json max_row = Json::array(), mean_row = Json::array();
    for (std::int64_t c = 0; c < head.cell_columns(); ++c) {
      max_row.push_back(JsonRounded(head.MaxOf(r, c)));
      mean_row.push_back(JsonRounded(head.MeanOf(r, c)));
    }
    max.push_back(std::move(max_row));
    mean.push_back(std::move(mean_row));
  }
  return {{"max", std::move(max)}, {"mean", std::move(mean)}};
}

// The keys that get most, in that order.
Json KeysJson(const HeadSummary& head, const std::vector<std::string>& names) {
  std::vector<std::size_t> keys(head.received().size());
  std::iota(keys.begin(), keys.end(), 0);
  const std::size_t count = std::min(kKeysListed, keys.size());
  const auto end = keys.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(keys.begin(), end, keys.end(), [&](std::size_t a, std::size_t b) {
    return head.received()[a] != head.received()[b] ? head.received()[a] > head.received()[b] : a < b;
  });
  Json list = Json::array();
  const auto rows = static_cast<double>(std::max<std::int64_t>(head.counted_rows(), 1));
  for (auto key = keys.begin(); key != end; ++key) {
    const double tenths = static_cast<double>(head.tenths()[*key]) / rows;
    list.push_back({{"key", *key},
                    {"name", *key < names.size() ? names[*key] : absl::StrCat("key ", *key)},
                    {"mean_weight", JsonRounded(head.received()[*key] / rows)},
                    {"rows_with_a_tenth", JsonRounded(tenths)},
                    {"sink", tenths >= kSinkShare}});
  }
  return list;
}

Json HeadJson(std::size_t number, const HeadSummary& head, const SummaryTitle& title) {
  std::vector<double> entropy, effective, sparsity;
  for (const RowSummary& row : head.row_summaries()) {
    if (row.keys_for_90 == 0) continue;
    entropy.push_back(static_cast<double>(row.entropy_bits));
    effective.push_back(row.effective_keys());
    sparsity.push_back(static_cast<double>(row.keys_for_90));
  }
  const auto rows = static_cast<double>(std::max<std::int64_t>(head.counted_rows(), 1));
  Json json = {{"head", number},
               {"empty_rows", head.empty_rows()},
               {"nonfinite_rows", head.nonfinite_rows()},
               {"mean_row_sum", JsonRounded(head.weight() / rows)},
               {"entropy_bits", Spread(std::move(entropy))},
               {"effective_keys", Spread(std::move(effective))},
               {"keys_for_90_percent", Spread(std::move(sparsity))},
               {"mean_distance", JsonRounded(head.distance_sum() / rows)},
               {"distances", Json::array()},
               {"keys", KeysJson(head, title.key_names)},
               {"rows", Json::array()},
               {"heat", HeatJson(head)}};
  for (const DistanceBin& bin : head.distances()) {
    json["distances"].push_back({{"from", bin.from}, {"to", bin.to}, {"share", JsonRounded(bin.weight / rows)}});
  }
  for (const auto& [row, top] : head.top_keys()) {
    const RowSummary& summary = head.row_summaries()[static_cast<std::size_t>(row)];
    Json keys = Json::array();
    for (const KeyWeight& key : top) keys.push_back({{"key", key.key}, {"weight", JsonNumber(key.weight)}});
    const bool counted = summary.keys_for_90 > 0;
    json["rows"].push_back({{"row", row},
                            {"entropy_bits", counted ? JsonRounded(static_cast<double>(summary.entropy_bits)) : Json()},
                            {"effective_keys", counted ? JsonRounded(summary.effective_keys()) : Json()},
                            {"keys_for_90_percent", counted ? Json(summary.keys_for_90) : Json()},
                            {"top", std::move(keys)}});
  }
  return json;
}

std::string Digits(const Json& number, int digits) {
  return number.is_null() ? "none" : number.is_string() ? number.get<std::string>() : Fixed(number, digits);
}

// How dark each cell of a printed heat map is: the square root shows small weights too.
void PrintHeat(const Json& json, const Json& head, std::ostream& out) {
  static constexpr absl::string_view kShades[] = {"  ", "··", "░░", "▒▒", "▓▓", "██"};
  const Json& cells = head["heat"]["max"];
  if (cells.empty() || cells[0].empty()) return;
  const std::size_t rows = cells.size(), columns = cells[0].size();
  const std::size_t step = (std::max(rows, columns) + kPrintedSide - 1) / kPrintedSide;
  const std::int64_t cell = json["cell"].get<std::int64_t>() * static_cast<std::int64_t>(step);
  out << "\nHead " << head["head"] << ": the largest weight of each square of " << cell << " × " << cell
      << " (rows down, keys across)\n";
  double most = 0;
  for (const Json& row : cells) {
    for (const Json& value : row) most = std::max(most, value.get<double>());
  }
  for (std::size_t r = 0; r < rows; r += step) {
    std::string line;
    for (std::size_t c = 0; c < columns; c += step) {
      double value = 0;
      for (std::size_t y = r; y < std::min(r + step, rows); ++y) {
        for (std::size_t x = c; x < std::min(c + step, columns); ++x)
          value = std::max(value, cells[y][x].get<double>());
      }
      const double share = most > 0 ? std::sqrt(value / most) : 0;
      absl::StrAppend(&line, kShades[std::min(static_cast<int>(std::ceil(share * 5)), 5)]);
    }
    out << absl::StrFormat("  %7d ", static_cast<std::int64_t>(r) * json["cell"].get<std::int64_t>()) << "|" << line
        << "|\n";
  }
}

}  // namespace

Json SummaryJson(const WeightsSummary& summary, const SummaryTitle& title) {
  Json json = {{"server", title.server}, {"sequence", title.sequence}, {"position", title.position}};
  if (!summary.heads().empty()) {
    const HeadSummary& first = summary.heads().front();
    json["rows"] = first.rows();
    json["keys"] = first.columns();
    json["cell"] = first.cell();
  }
  json["head"] = title.head;
  json["key_names"] = title.key_names;
  json["heads"] = Json::array();
  for (std::size_t h = 0; h < summary.heads().size(); ++h) {
    json["heads"].push_back(HeadJson(h, summary.heads()[h], title));
  }
  return json;
}

void PrintSummary(const Json& json, std::ostream& out) {
  out << "Weights of " << json["rows"] << " rows over " << json["keys"] << " keys, computed by "
      << json["server"].get<std::string>() << "\n\n";
  Table heads;
  heads.Row({"head", "entropy (bits)", "effective keys", "keys for 90 %", "mean distance", "sinks", "empty rows"});
  for (const Json& head : json["heads"]) {
    std::vector<std::string> sinks;
    for (const Json& key : head["keys"]) {
      if (key["sink"].get<bool>()) sinks.push_back(key["name"]);
    }
    heads.Row({head["head"].dump(), Digits(head["entropy_bits"]["mean"], 2), Digits(head["effective_keys"]["mean"], 1),
               Digits(head["keys_for_90_percent"]["mean"], 1), Digits(head["mean_distance"], 1),
               sinks.empty() ? "none" : absl::StrJoin(sinks, ", "), head["empty_rows"].dump()});
  }
  out << heads.Text() << "\nMeans over rows. Effective keys: as many as would have this entropy if they shared the\n"
      << "weight evenly. A sink: at least half of the rows give it a tenth of their weight or more.\n";
  const Json& head = json["heads"][json["head"].get<std::size_t>()];
  PrintHeat(json, head, out);

  out << "\nHead " << head["head"] << ": where the weight goes, by distance (row's position minus key)\n";
  Table distances;
  for (const Json& bin : head["distances"]) {
    const double share = bin["share"];
    const std::string from = bin["from"].dump(), to = bin["to"].dump();
    if (share < 0.0005) continue;
    distances.Row({from == to ? from : absl::StrCat(from, " to ", to), absl::StrFormat("%.1f %%", 100 * share)});
  }
  out << distances.Text(2) << "\nHead " << head["head"] << ": the keys that get most\n";
  Table keys;
  keys.Row({"key", "mean weight", "rows that give it a tenth"});
  for (const Json& key : head["keys"]) {
    keys.Row({key["name"], Digits(key["mean_weight"], 4),
              absl::StrFormat("%.1f %%", 100 * key["rows_with_a_tenth"].get<double>())});
  }
  out << keys.Text(2) << "\nHead " << head["head"] << ": rows, and the keys they weigh most\n";
  Table rows({true, false, false, true});
  rows.Row({"row", "effective keys", "keys for 90 %", "keys with the most weight"});
  const std::size_t listed = head["rows"].size(), printed = std::min(listed, kPrintedRows);
  for (std::size_t n = 0; n < printed; ++n) {
    const Json& row = head["rows"][printed == 1 ? 0 : n * (listed - 1) / (printed - 1)];
    std::vector<std::string> top;
    for (const Json& key : row["top"])
      top.push_back(absl::StrCat(key["key"].dump(), " (", Digits(key["weight"], 4), ")"));
    rows.Row({row["row"].dump(), Digits(row["effective_keys"], 1), Digits(row["keys_for_90_percent"], 0),
              top.empty() ? "none" : absl::StrJoin(top, ", ")});
  }
  out << rows.Text(2);
}

}  // namespace attnd::client
