#include "client/cli/explain/lesson.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/text.h"

namespace attnd::client {

namespace {

constexpr std::size_t kKeysShown = 12;
constexpr std::size_t kNumbersShown = 8;  // of a vector; of a longer one as many as the next line says
constexpr std::size_t kNumbersShownOfMore = 4;

std::string Number(double value) { return absl::StrFormat("%.4g", value); }
std::string Factor(double value) { return value < 0 ? absl::StrCat("(", Number(value), ")") : Number(value); }

std::size_t Shown(std::size_t size) { return size > kNumbersShown ? kNumbersShownOfMore : size; }

// "1·2 + 3·4 + …"; `more` says that there are more terms than these.
std::string SumOfProducts(const std::vector<std::string>& left, const std::vector<std::string>& right, bool more) {
  std::vector<std::string> terms;
  for (std::size_t i = 0; i < left.size(); ++i) terms.push_back(absl::StrCat(left[i], "·", right[i]));
  if (more) terms.emplace_back("…");
  return absl::StrJoin(terms, " + ");
}

std::vector<std::string> Factors(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < Shown(values.size()); ++i) texts.push_back(Factor(values[i]));
  return texts;
}

std::string Vector(const std::vector<double>& values, int digits) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < Shown(values.size()); ++i) {
    texts.push_back(digits < 0 ? Number(values[i]) : Fixed(values[i], digits));
  }
  if (values.size() > texts.size()) texts.push_back(absl::StrCat("… (", values.size(), " numbers)"));
  return absl::StrJoin(texts, " ");
}

// Two digits where they say all there is, else four.
int Digits(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](double v) { return std::isinf(v) || std::fabs(v * 100 - std::round(v * 100)) < 1e-4; })
             ? 2
             : 4;
}

void PrintInputs(const Lesson& lesson, std::ostream& out) {
  out << "Attention for " << lesson.row_name << ", step by step, computed by " << lesson.source
      << " in float64 (reference mode).\n";
  if (lesson.shown.size() < lesson.keys.size()) {
    out << "Shown are the " << lesson.shown.size() << " of " << lesson.keys.size()
        << " keys with the largest weights.\n";
  }
  out << "\nWhat each token brings\n";
  Table table({true, true, true});
  table.Row({"", "key (what it offers)", "value (what it hands on)"});
  for (const std::size_t j : lesson.shown) {
    table.Row({lesson.labels[j], Vector(lesson.keys[j], -1), Vector(lesson.values[j], -1)});
  }
  out << table.Text(2) << "\nThe query of " << lesson.row_name << " (what it looks for): " << Vector(lesson.query, -1)
      << "\n";
}

void PrintScores(const Lesson& lesson, std::ostream& out) {
  const int digits = Digits(lesson.dot);
  out << "\n1. Score: query times key, number by number, added up\n";
  Table scores;
  for (const std::size_t j : lesson.shown) {
    if (std::isinf(lesson.dot[j])) {
      scores.Row({lesson.labels[j], "excluded"});
    } else if (lesson.rotary) {
      scores.Row({lesson.labels[j], absl::StrCat("(after the rotary turn) ", Fixed(lesson.dot[j], digits))});
    } else {
      scores.Row({lesson.labels[j], absl::StrCat(SumOfProducts(Factors(lesson.query), Factors(lesson.keys[j]),
                                                               Shown(lesson.query.size()) < lesson.query.size()),
                                                 " = ", Fixed(lesson.dot[j], digits))});
    }
  }
  out << scores.Text(2);
  const double root = std::sqrt(static_cast<double>(lesson.query.size()));
  if (lesson.scale_given) {
    out << "\n2. Scale: times " << Short(lesson.scale) << "\n";
  } else {
    out << "\n2. Scale: divide by √d_k = √" << lesson.query.size() << " = " << Short(root)
        << ", so that scores do not grow with the length of the vectors\n";
  }
  const int scaled_digits = Digits(lesson.scaled);
  Table scaled;
  for (const std::size_t j : lesson.shown) {
    if (std::isinf(lesson.scaled[j])) {
      scaled.Row({lesson.labels[j], "excluded"});
      continue;
    }
    const std::string step =
        lesson.scale_given ? absl::StrCat(" · ", Factor(lesson.scale)) : absl::StrCat(" / ", Short(root));
    scaled.Row({lesson.labels[j],
                absl::StrCat(Fixed(lesson.dot[j], digits), step, " = ", Fixed(lesson.scaled[j], scaled_digits))});
  }
  out << scaled.Text(2);
  for (const auto& [name, values] : {std::pair("Soft cap: cap · tanh(score / cap)", &lesson.capped),
                                     std::pair("Bias: added to the score", &lesson.biased)}) {
    if (values->empty()) continue;
    out << "\n   " << name << "\n";
    Table table;
    for (const std::size_t j : lesson.shown) {
      table.Row({lesson.labels[j], std::isinf((*values)[j]) ? "excluded" : Fixed((*values)[j], 4)});
    }
    out << table.Text(2);
  }
}

// An exponent as the tables above print it.
std::string Power(double value, int digits) {
  const std::string text = Fixed(value, digits);
  return text[0] == '-' ? absl::StrCat("(", text, ")") : text;
}

void PrintSoftmax(const Lesson& lesson, std::ostream& out) {
  const std::vector<double>& logits = !lesson.biased.empty()   ? lesson.biased
                                      : !lesson.capped.empty() ? lesson.capped
                                                               : lesson.scaled;
  const double most = *std::max_element(logits.begin(), logits.end());
  // Large logits are shown relative to the largest: the shares are the same, and e^100 is no number for paper.
  const double shift = most > 10 || most < -10 ? most : 0;
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - shift);
  if (lesson.sink) sum += std::exp(*lesson.sink - shift);
  out << "\n3. Softmax: e to the power of each, as a share of the sum " << Fixed(sum, 4);
  if (shift != 0) out << " (after taking the largest, " << Fixed(shift, 4) << ", away from each)";
  if (lesson.sink) out << " (the sink's e^" << Factor(*lesson.sink) << " counts in the sum and has no value)";
  out << "\n";
  Table table;
  const int digits = Digits(logits);
  for (const std::size_t j : lesson.shown) {
    if (std::isinf(logits[j])) {
      table.Row({lesson.labels[j], "excluded", absl::StrCat("weight ", Fixed(lesson.weights[j], 4))});
      continue;
    }
    const std::string power = Fixed(std::exp(logits[j] - shift), 4);
    table.Row({lesson.labels[j], absl::StrCat("e^", Power(logits[j] - shift, digits), " = ", power),
               absl::StrCat(power, " / ", Fixed(sum, 4), " = ", Fixed(lesson.weights[j], 4))});
  }
  out << table.Text(2);
}

void PrintSum(const Lesson& lesson, std::ostream& out) {
  out << "\n4. Weighted sum: each number of the values, mixed by the weights\n";
  std::vector<std::string> weights;
  std::vector<std::size_t> keys;  // an excluded key has no part in the sum
  for (const std::size_t j : lesson.shown) {
    if (!std::isinf(lesson.dot[j])) keys.push_back(j);
  }
  for (const std::size_t j : keys) weights.push_back(Fixed(lesson.weights[j], 4));
  const bool more = lesson.shown.size() < lesson.keys.size();
  const std::size_t columns = lesson.values.front().size();
  Table table;
  for (std::size_t c = 0; c < Shown(columns) && c < lesson.mixed.size(); ++c) {
    std::vector<std::string> of_keys;
    for (const std::size_t j : keys) of_keys.push_back(Factor(lesson.values[j][c]));
    table.Row(
        {absl::StrCat("number ", c + 1), absl::StrCat(keys.empty() ? "nothing" : SumOfProducts(weights, of_keys, more),
                                                      " = ", Fixed(lesson.mixed[c], 4))});
  }
  out << table.Text(2);
  if (Shown(columns) < columns) out << "  … and so on, " << columns << " numbers in all\n";
  if (lesson.output_projection) out << "  … and W_O turns the heads' sums, side by side, into the output\n";
}

void PrintSummary(const Lesson& lesson, std::ostream& out) {
  out << "\nAll steps at once\n";
  Table table;
  std::vector<std::string> labels = {""};
  for (const std::size_t j : lesson.shown) labels.push_back(lesson.labels[j]);
  table.Row(labels);
  const auto row = [&](const std::string& name, const std::vector<double>& values, int digits) {
    if (values.empty()) return;
    std::vector<std::string> cells = {name};
    for (const std::size_t j : lesson.shown)
      cells.push_back(std::isinf(values[j]) ? "excluded" : Fixed(values[j], digits));
    table.Row(cells);
  };
  row("score", lesson.dot, Digits(lesson.dot));
  row("scaled", lesson.scaled, Digits(lesson.scaled));
  row("capped", lesson.capped, 4);
  row("biased", lesson.biased, 4);
  row("weight", lesson.weights, 4);
  out << table.Text(2) << "\n";
  if (!lesson.before.empty()) out << lesson.row_name << " before: " << Vector(lesson.before, -1) << "\n";
  out << lesson.row_name << " after:  " << Vector(lesson.after, 4) << "\n";
}

}  // namespace

std::vector<std::size_t> ShownKeys(const std::vector<double>& weights) {
  std::vector<std::size_t> keys(weights.size());
  std::iota(keys.begin(), keys.end(), 0);
  if (keys.size() <= kKeysShown) return keys;
  std::stable_sort(keys.begin(), keys.end(), [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  keys.resize(kKeysShown);
  while (keys.size() > 1 && weights[keys.back()] == 0) keys.pop_back();
  std::sort(keys.begin(), keys.end());
  return keys;
}

void PrintLesson(const Lesson& lesson, std::ostream& out) {
  PrintInputs(lesson, out);
  PrintScores(lesson, out);
  PrintSoftmax(lesson, out);
  PrintSum(lesson, out);
  PrintSummary(lesson, out);
}

}  // namespace attnd::client
