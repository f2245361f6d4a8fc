#include "client/cli/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace attnd::client {

std::size_t Histogram::BucketOf(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  const int shift = std::max(0, static_cast<int>(std::bit_width(bits)) - 8);
  return static_cast<std::size_t>(shift * kHalf) + static_cast<std::size_t>(bits >> shift);
}

double Histogram::MiddleOf(std::size_t bucket) {
  const auto index = static_cast<std::int64_t>(bucket);
  if (index < 2 * kHalf) return static_cast<double>(index);
  const auto shift = static_cast<int>(index / kHalf - 1);
  const double first = std::ldexp(static_cast<double>(index % kHalf + kHalf), shift);
  return first + (std::ldexp(1.0, shift) - 1) / 2;
}

void Histogram::Add(std::int64_t value) {
  value = std::max<std::int64_t>(value, 0);
  const std::size_t bucket = BucketOf(value);
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  ++buckets_[bucket];
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = std::max(max_, value);
  ++count_;
  sum_ += static_cast<double>(value);
}

void Histogram::Merge(const Histogram& other) {
  if (other.count_ == 0) return;
  buckets_.resize(std::max(buckets_.size(), other.buckets_.size()));
  for (std::size_t b = 0; b < other.buckets_.size(); ++b) buckets_[b] += other.buckets_[b];
  min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  count_ += other.count_;
  sum_ += other.sum_;
}

double Histogram::Percentile(double percent) const {
  if (count_ == 0) return 0;
  const auto rank = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(std::ceil(percent / 100 * static_cast<double>(count_))), 1, count_);
  if (rank == count_) return static_cast<double>(max_);
  std::int64_t seen = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    seen += buckets_[b];
    if (seen >= rank) return std::clamp(MiddleOf(b), static_cast<double>(min_), static_cast<double>(max_));
  }
  return static_cast<double>(max_);
}

}  // namespace attnd::client
