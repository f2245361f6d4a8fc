#include "client/cli/bench/compare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/random.h"
#include "client/cli/text.h"

namespace attnd::client {

namespace {

constexpr int kResamples = 2000;
constexpr std::size_t kRun = 3;        // steps that are drawn together
constexpr std::size_t kStepsMin = 12;  // with fewer there is no telling
constexpr char kUnanswered[] = "unanswered";
constexpr double kTail = 0.005;  // on either side: 99 %

struct Metric {
  const char* name;
  const char* field;  // of a step
  bool more_is_better;
};
constexpr Metric kMetrics[] = {{"requests/s", "requests_per_second", true},
                               {"mean", "mean_us", false},
                               {"p50", "p50_us", false},
                               {"p99", "p99_us", false}};

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double ResampledMean(const std::vector<double>& steps, std::mt19937_64& generator) {
  double sum = 0;
  std::size_t taken = 0;
  while (taken < steps.size()) {
    const auto first = static_cast<std::size_t>(Uniform(generator) * static_cast<double>(steps.size()));
    for (std::size_t k = 0; k < kRun && taken < steps.size(); ++k, ++taken) sum += steps[(first + k) % steps.size()];
  }
  return sum / static_cast<double>(taken);
}

// Where a point stands, "rate " 100 -> the point.
using PointsByPlace = std::map<std::pair<std::string, double>, nlohmann::json>;
absl::StatusOr<PointsByPlace> Points(const nlohmann::json& report) {
  const absl::Status none = absl::InvalidArgumentError("a file to compare is no report of `attn bench --json`");
  if (!report.is_object() || !report.contains("points") || !report["points"].is_array()) return none;
  PointsByPlace points;
  for (const nlohmann::json& point : report["points"]) {
    if (!point.is_object() || !point.contains("timeline") || !point["timeline"].is_array()) return none;
    for (const char* name : {"rate", "concurrency"}) {
      if (point.contains(name) && point[name].is_number()) {
        points[{*name == 'r' ? "rate " : "callers ", point[name].get<double>()}] = point;
      }
    }
  }
  return points;
}

std::vector<double> Steps(const nlohmann::json& point, const char* field) {
  std::vector<double> values;
  for (const nlohmann::json& step : point["timeline"]) {
    if (step.is_object() && step.contains(field) && step[field].is_number())
      values.push_back(step[field].get<double>());
  }
  return values;
}

Change CompareSteps(const std::vector<double>& before, const std::vector<double>& after, bool more_is_better,
                    double least) {
  Change change;
  if (before.size() < kStepsMin || after.size() < kStepsMin || Mean(before) <= 0) {
    change.verdict = Change::kTooShort;
    return change;
  }
  change.before = Mean(before);
  change.after = Mean(after);
  change.change = change.after / change.before - 1;
  std::mt19937_64 generator(1);
  std::vector<double> changes;
  for (int k = 0; k < kResamples; ++k) {
    const double was = ResampledMean(before, generator), is = ResampledMean(after, generator);
    changes.push_back(was > 0 ? is / was - 1 : 0);
  }
  std::sort(changes.begin(), changes.end());
  change.low = changes[static_cast<std::size_t>(kTail * kResamples)];
  change.high = changes[static_cast<std::size_t>((1 - kTail) * kResamples) - 1];
  if (change.low > least) change.verdict = more_is_better ? Change::kBetter : Change::kWorse;
  if (change.high < -least) change.verdict = more_is_better ? Change::kWorse : Change::kBetter;
  return change;
}

// Requests of a point that were due, and those of them that were not answered.
struct Unanswered {
  double due = 0, lost = 0;
  explicit Unanswered(const nlohmann::json& point) {
    for (const char* name : {"requests", "refused", "failed", "unsent"}) {
      const double count = point.contains(name) && point[name].is_number() ? point[name].get<double>() : 0;
      due += count;
      if (absl::string_view(name) != "requests") lost += count;
    }
  }
  double share() const { return due > 0 ? lost / due : 0; }
  double variance() const { return due > 0 ? share() * (1 - share()) / due : 0; }
};

Change CompareUnanswered(const Unanswered& before, const Unanswered& after) {
  constexpr double kDeviations = 2.5758;  // of a normal distribution, within which 99 % lie
  Change change;
  change.metric = kUnanswered;
  change.before = before.share();
  change.after = after.share();
  change.change = change.after - change.before;
  const double half = kDeviations * std::sqrt(before.variance() + after.variance());
  change.low = change.change - half;
  change.high = change.change + half;
  if (change.low > 0) change.verdict = Change::kWorse;
  if (change.high < 0) change.verdict = Change::kBetter;
  return change;
}

}  // namespace

absl::StatusOr<std::vector<Change>> Compare(const nlohmann::json& before, const nlohmann::json& after, double least) {
  const auto were = Points(before), are = Points(after);
  if (!were.ok()) return were.status();
  if (!are.ok()) return are.status();
  std::vector<Change> changes;
  for (const auto& [place, was] : *were) {
    const auto is = are->find(place);
    if (is == are->end()) continue;
    for (const Metric& metric : kMetrics) {
      Change change =
          CompareSteps(Steps(was, metric.field), Steps(is->second, metric.field), metric.more_is_better, least);
      change.where = absl::StrCat(place.first, Short(place.second));
      change.metric = metric.name;
      changes.push_back(std::move(change));
    }
    const Unanswered before_it(was), after_it(is->second);
    if (before_it.lost + after_it.lost == 0) continue;
    Change change = CompareUnanswered(before_it, after_it);
    change.where = changes.back().where;
    changes.push_back(std::move(change));
  }
  if (changes.empty()) return absl::InvalidArgumentError("the reports have no rate or number of callers in common");
  return changes;
}

std::string ChangesTable(const std::vector<Change>& changes) {
  Table table({true, true});
  table.Row({"at", "of", "before", "after", "change", "99 % interval", "verdict"});
  static constexpr const char* kVerdicts[] = {"noise", "better", "worse", "too short"};
  for (const Change& c : changes) {
    const auto number = [&](double value) {
      if (c.metric == kUnanswered) return absl::StrFormat("%.2f %%", value * 100);
      return c.metric == "requests/s" ? absl::StrFormat("%.1f", value) : HumanMicroseconds(value);
    };
    if (c.verdict == Change::kTooShort) {
      table.Row({c.where, c.metric, "-", "-", "-", "-", kVerdicts[c.verdict]});
      continue;
    }
    table.Row({c.where, c.metric, number(c.before), number(c.after), absl::StrFormat("%+.1f %%", c.change * 100),
               absl::StrFormat("%+.1f ... %+.1f %%", c.low * 100, c.high * 100), kVerdicts[c.verdict]});
  }
  return table.Text();
}

}  // namespace attnd::client
