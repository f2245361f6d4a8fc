// One row of attention as a lesson: what the steps are made of, and the page that spells them out.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace attnd::client {

// Everything the page shows: one row of one head, and what each key brings.
struct Lesson {
  std::string source;
  std::vector<std::string> labels;  // by key
  std::string row_name;             // quoted label, or "row 5"
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
};

// The keys that a page shows: all of up to twelve, else the twelve with the largest weights and none without weight.
std::vector<std::size_t> ShownKeys(const std::vector<double>& weights);

// The four steps with their arithmetic, a summary, and the vector before and after.
void PrintLesson(const Lesson& lesson, std::ostream& out);

}  // namespace attnd::client
