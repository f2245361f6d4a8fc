#include "client/cli/bench/arrivals.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/flags.h"
#include "client/cli/random.h"

namespace attnd::client {

namespace {

constexpr std::size_t kSweepMax = 1000;

}  // namespace

std::int64_t Arrivals::Next() {
  // Products instead of a sum: a constant rate has no error that grows.
  if (!random_) return static_cast<std::int64_t>(static_cast<double>(constant_++) * gap_ns_);
  poisson_ns_ -= std::log1p(-Uniform(generator_)) * gap_ns_;
  return static_cast<std::int64_t>(poisson_ns_);
}

absl::StatusOr<std::vector<double>> ParseSweep(absl::string_view flag, absl::string_view text, double least) {
  const absl::Status bad = UsageError(absl::StrCat(flag, ": '", text, "', expected numbers of at least ", least,
                                                   " as 250, 100,200,500, 100:2000:100 or 1:64:x2"));
  const auto number = [&](absl::string_view part, double* value) {
    return absl::SimpleAtod(part, value) && std::isfinite(*value) && *value >= least;
  };
  std::vector<double> values;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() == 1) {
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      double value = 0;
      if (!number(part, &value)) return bad;
      values.push_back(value);
    }
    return values;
  }
  double first = 0, last = 0, step = 0;
  if (parts.size() != 3 || !number(parts[0], &first) || !number(parts[1], &last) || last < first) return bad;
  absl::string_view by = parts[2];
  const bool factor = absl::ConsumePrefix(&by, "x");
  if (!absl::SimpleAtod(by, &step) || !(factor ? step > 1 : step > 0)) return bad;
  for (std::size_t k = 0; k < kSweepMax; ++k) {
    const auto n = static_cast<double>(k);
    const double value = factor ? first * std::pow(step, n) : first + n * step;
    if (value > last * (1 + 1e-9)) return values;
    values.push_back(value);
  }
  return UsageError(absl::StrCat(flag, ": '", text, "' has more than ", kSweepMax, " steps"));
}

absl::StatusOr<double> ParseMicroseconds(absl::string_view flag, absl::string_view text) {
  static constexpr std::pair<absl::string_view, double> kUnits[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}};
  for (const auto& [unit, us] : kUnits) {
    absl::string_view number = text;
    double value = 0;
    if (absl::ConsumeSuffix(&number, unit) && absl::SimpleAtod(number, &value) && value > 0 && std::isfinite(value)) {
      return value * us;
    }
  }
  return UsageError(absl::StrCat(flag, ": '", text, "', expected a time above 0 with its unit, as 5ms, 250us or 1.5s"));
}

absl::StatusOr<RateSearch> SearchRate(double first, double lowest, double highest, double tolerance,
                                      const std::function<absl::StatusOr<bool>(double rate)>& passes) {
  RateSearch found;
  double rate = std::min(first, highest);
  while (true) {
    absl::StatusOr<bool> passed = passes(rate);
    if (passed.ok() && !*passed) passed = passes(rate);
    if (!passed.ok()) return passed.status();
    if (*passed) {
      found.best = rate;
    } else {
      found.failed = rate;
    }
    if (found.failed == 0) {
      if (rate >= highest) return found;
      rate = std::min(2 * rate, highest);
    } else if (found.best == 0) {
      rate /= 2;
      if (rate < lowest) return found;
    } else {
      if (found.failed - found.best <= tolerance * found.best) return found;
      rate = (found.best + found.failed) / 2;
    }
  }
}

}  // namespace attnd::client
