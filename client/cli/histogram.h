// Latencies in constant memory: buckets that grow with the value, so that a percentile is off by at most 0.4 %.
// Thread rule: one thread; workers keep their own and Merge at the end.
#pragma once

#include <cstdint>
#include <vector>

namespace attnd::client {

class Histogram {
 public:
  void Add(std::int64_t value);  // negative counts as 0
  void Merge(const Histogram& other);

  std::int64_t count() const { return count_; }
  std::int64_t max() const { return max_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  // The smallest recorded value that at least `percent` of all values do not exceed; 0 when there are none.
  double Percentile(double percent) const;

 private:
  // Values below 2 * kHalf have a bucket each; above, kHalf buckets for each doubling.
  static constexpr std::int64_t kHalf = 128;
  static std::size_t BucketOf(std::int64_t value);
  static double MiddleOf(std::size_t bucket);

  std::vector<std::int64_t> buckets_;
  std::int64_t count_ = 0, min_ = 0, max_ = 0;
  double sum_ = 0;
};

}  // namespace attnd::client
