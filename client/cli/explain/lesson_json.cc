// A lesson as JSON: what --json prints and the page draws.
#include <cmath>
#include <limits>

#include "client/cli/explain/lesson.h"
#include "client/cli/explain/numbers.h"

namespace attnd::client {

namespace {

using Json = nlohmann::ordered_json;

// Of a row's scores or weights, those of the keys that are shown.
Json OfKeys(const std::vector<double>& values, const Lesson& lesson, bool excluded_is_null) {
  Json list = Json::array();
  for (const std::size_t j : lesson.shown) {
    const bool excluded = lesson.dot[j] == -std::numeric_limits<double>::infinity() && excluded_is_null;
    list.push_back(excluded ? Json() : JsonNumber(values[j]));
  }
  return list;
}

Json HeadJson(const std::vector<Lesson>& rows, const Lesson& chosen) {
  const Lesson& first = rows.front();
  Json head = {{"head", first.head}, {"kv_head", first.kv_head}};
  if (first.sink) head["sink"] = JsonNumber(*first.sink);
  for (const char* name : {"query", "key", "value", "dot", "scaled"}) head[name] = Json::array();
  for (const std::size_t j : chosen.shown) {
    head["key"].push_back(JsonNumbers(first.keys[j]));
    head["value"].push_back(JsonNumbers(first.values[j]));
  }
  for (const Lesson& row : rows) {
    head["query"].push_back(JsonNumbers(row.query));
    head["dot"].push_back(OfKeys(row.dot, row, true));
    head["scaled"].push_back(OfKeys(row.scaled, row, true));
    if (!row.capped.empty()) head["capped"].push_back(OfKeys(row.capped, row, true));
    if (!row.biased.empty()) head["biased"].push_back(OfKeys(row.biased, row, true));
    head["weights"].push_back(OfKeys(row.weights, row, false));
    head["mixed"].push_back(JsonNumbers(row.mixed));
  }
  return head;
}

}  // namespace

Json LessonJson(const LessonGrid& grid) {
  const Lesson& chosen = grid.Chosen();
  Json json = {{"server", chosen.source}, {"sequence", grid.sequence}};
  json["scale"] = chosen.scale_given ? chosen.scale : 1 / std::sqrt(static_cast<double>(chosen.query.size()));
  json["scale_given"] = chosen.scale_given;
  json["d_k"] = chosen.query.size();
  json["rotary"] = chosen.rotary;
  json["output_projection"] = chosen.output_projection;
  json["keys_in_all"] = chosen.keys.size();
  json["row"] = grid.row;
  json["head"] = grid.head;
  for (const Lesson& row : grid.heads[grid.head]) {
    Json before = row.before.empty() ? Json() : JsonNumbers(row.before);
    json["queries"].push_back(
        Json{{"row", row.row}, {"name", row.row_label}, {"before", before}, {"after", JsonNumbers(row.after)}});
  }
  for (const std::size_t j : chosen.shown) json["keys"].push_back(Json{{"key", j}, {"name", chosen.labels[j]}});
  for (const std::vector<Lesson>& rows : grid.heads) json["heads"].push_back(HeadJson(rows, chosen));
  return json;
}

}  // namespace attnd::client
