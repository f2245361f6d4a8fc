// One row of attention as a lesson: what the steps are made of, and the text that spells them out.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace attnd::client {

// Everything the page shows: one row of one head, and what each key brings.
struct Lesson {
  std::string source;
  std::vector<std::string> labels;  // by key
  std::string row_label, row_name;  // the row's own token, or "position 5"; the same, quoted where the caller named it
  std::vector<double> query;        // d_k
  std::vector<std::vector<double>> keys, values;
  std::vector<double> dot, scaled, capped, biased, weights;  // by key; capped and biased may be empty
  std::vector<double> mixed;  // the weighted sum: the output, or what W_O still turns into it
  std::vector<double> before, after;
  std::optional<double> sink;
  bool output_projection = false;
  double scale = 1;
  bool scale_given = false;
  bool rotary = false;
  std::vector<std::size_t> shown;  // keys, in order
  std::int64_t head = 0, kv_head = 0, row = 0;
};

// Rows of one sequence, in order, in each of its heads: what the page shows. `row` and `head` are places in these
// lists.
struct LessonGrid {
  std::vector<std::vector<Lesson>> heads;  // by head, by row
  std::size_t row = 0, head = 0;           // the one that is spelt out
  std::int64_t sequence = 0;
  const Lesson& Chosen() const { return heads[head][row]; }
};

// The keys that a page shows: all of up to twelve, else the twelve with the largest weights and none without weight.
std::vector<std::size_t> ShownKeys(const std::vector<double>& weights);

// The four steps with their arithmetic, a summary, and the vector before and after.
void PrintLesson(const Lesson& lesson, std::ostream& out);

// The same as numbers, of every row and head. What is excluded is null; what is no number is a string.
nlohmann::ordered_json LessonJson(const LessonGrid& grid);

}  // namespace attnd::client
