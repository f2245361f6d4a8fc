// When requests are due: an open loop's schedule, which no answer changes, and the numbers that a sweep goes through.
// Times are nanoseconds since the load began. Thread rule: an Arrivals belongs to one thread; the rest is pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace attnd::client {

class Arrivals {
 public:
  // Request n is due at n / rate; the rate is in requests a second.
  static Arrivals Constant(double rate) { return Arrivals(rate, std::nullopt); }
  // Gaps are exponential with mean 1 / rate.
  static Arrivals Poisson(double rate, std::uint64_t seed) { return Arrivals(rate, seed); }

  // When the next request is due; never before the one before it.
  std::int64_t Next();

 private:
  Arrivals(double rate, std::optional<std::uint64_t> seed) : gap_ns_(1e9 / rate), random_(seed.has_value()) {
    if (seed) generator_.seed(*seed);
  }

  const double gap_ns_;
  const bool random_;
  std::mt19937_64 generator_;
  double poisson_ns_ = 0;
  std::int64_t constant_ = 0;
};

// "250", "100,200,500", "100:2000:100" (from, to, step) or "1:64:x2" (from, to, factor); both ends are included where a
// step meets them. Usage errors name the flag, which takes numbers of at least `least`.
absl::StatusOr<std::vector<double>> ParseSweep(absl::string_view flag, absl::string_view text, double least);

// "5ms", "250us", "1.5s" -> microseconds. A usage error names the flag.
absl::StatusOr<double> ParseMicroseconds(absl::string_view flag, absl::string_view text);

struct RateSearch {
  double best = 0;    // the highest rate that passed; 0 when none did
  double failed = 0;  // the lowest that did not; 0 when none was found
};
// The highest rate that passes, from `first` on by doubling and then by halving what is left, until best and failed are
// closer than `tolerance` (a share of best) or no rate below `highest` failed. A rate fails only when it does so twice
// in a row, since noise can make a good one fail but seldom a bad one pass. Gives up below `lowest`.
absl::StatusOr<RateSearch> SearchRate(double first, double lowest, double highest, double tolerance,
                                      const std::function<absl::StatusOr<bool>(double rate)>& passes);

}  // namespace attnd::client
