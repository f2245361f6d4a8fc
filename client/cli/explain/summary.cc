#include "client/cli/explain/summary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace attnd::client {

namespace {

constexpr std::int64_t kOpenBytesMax = 128 << 20;  // of unfinished rows
constexpr std::size_t kTopKeys = 3;
constexpr double kShare = 0.9, kTenth = 0.1;

// Weights by size, in steps of 1/32 of a power of two: the bits of a float that is not negative are in its order.
constexpr int kBucketShift = 18;
constexpr std::size_t kBuckets = (0x3f800000U >> kBucketShift) + 1;  // up to 1

std::size_t BucketOf(float weight) {
  std::uint32_t bits;
  std::memcpy(&bits, &weight, sizeof(bits));
  return std::min<std::size_t>(bits >> kBucketShift, kBuckets - 1);
}

// 0, 1, 2 to 3, 4 to 7, ... on both sides, as far as a query and a key of the problem can lie apart.
std::vector<DistanceBin> DistanceBins(std::int64_t least, std::int64_t most) {
  std::vector<DistanceBin> bins;
  const auto add = [&](std::int64_t from, std::int64_t to) {
    if (from <= most && to >= least) bins.push_back({std::max(from, least), std::min(to, most), 0});
  };
  for (std::int64_t size = std::int64_t{1} << 40; size > 0; size /= 2) add(-2 * size + 1, -size);
  add(0, 0);
  for (std::int64_t size = 1; size <= std::int64_t{1} << 40; size *= 2) add(size, 2 * size - 1);
  return bins;
}

}  // namespace

double RowSummary::effective_keys() const { return std::exp2(static_cast<double>(entropy_bits)); }

RowScratch::RowScratch(std::int64_t columns)
    : before(static_cast<std::size_t>(columns + 1)),
      moment_before(static_cast<std::size_t>(columns + 1)),
      bucket_count(kBuckets),
      bucket_sum(kBuckets) {}

HeadSummary::HeadSummary(std::int64_t rows, std::int64_t columns, std::int64_t position, std::int64_t cells_max,
                         std::vector<std::int64_t> listed)
    : rows_(rows),
      columns_(columns),
      position_(position),
      cell_(std::max<std::int64_t>((std::max(rows, columns) + cells_max - 1) / cells_max, 1)),
      max_(static_cast<std::size_t>(cell_rows() * cell_columns())),
      sum_(max_.size()),
      finite_rows_(static_cast<std::size_t>(cell_rows())),
      row_summaries_(static_cast<std::size_t>(rows)),
      distances_(DistanceBins(position - columns + 1, position + rows - 1)),
      received_(static_cast<std::size_t>(columns)),
      tenths_(static_cast<std::size_t>(columns)) {
  for (const std::int64_t row : listed) top_keys_[row];
  if (columns == 0) empty_rows_ = rows;  // of which no block will come
}

double HeadSummary::MeanOf(std::int64_t cell_row, std::int64_t cell_column) const {
  const std::int64_t keys = std::min(cell_, columns_ - cell_column * cell_);
  const std::int64_t entries = keys * finite_rows_[static_cast<std::size_t>(cell_row)];
  return entries == 0 ? 0 : sum_[Cell(cell_row, cell_column)] / static_cast<double>(entries);
}

void HeadSummary::AddRow(std::int64_t row, const float* weights, RowScratch& scratch) {
  const auto columns = static_cast<std::size_t>(columns_);
  double sum = 0, moment = 0;
  for (std::size_t j = 0; j < columns; ++j) {
    sum += weights[j];
    moment += weights[j] * static_cast<double>(j);
    scratch.before[j + 1] = sum;
    scratch.moment_before[j + 1] = moment;
  }
  if (!std::isfinite(sum)) {
    ++nonfinite_rows_;
    return;
  }
  AddToCells(row, weights, scratch);
  if (sum <= 0) {
    ++empty_rows_;
    return;
  }
  ++counted_rows_;
  weight_ += sum;
  double of_logs = 0;
  const auto tenth = static_cast<float>(kTenth * sum);
  for (std::size_t j = 0; j < columns; ++j) {
    if (weights[j] > 0) of_logs += weights[j] * static_cast<double>(std::log2(weights[j]));
    if (weights[j] >= tenth) ++tenths_[j];
  }
  for (std::size_t j = 0; j < columns; ++j) received_[j] += weights[j];
  RowSummary& summary = row_summaries_[static_cast<std::size_t>(row)];
  // -sum (w / s) log2 (w / s), which rounding must not turn negative.
  summary.entropy_bits = static_cast<float>(std::max(std::log2(sum) - of_logs / sum, 0.0));
  summary.keys_for_90 = KeysFor90(weights, sum, scratch);
  AddDistances(row, sum, scratch);
  const auto listed = top_keys_.find(row);
  if (listed != top_keys_.end()) listed->second = TopKeys(weights);
}

void HeadSummary::AddToCells(std::int64_t row, const float* weights, const RowScratch& scratch) {
  const std::int64_t cell_row = row / cell_;
  ++finite_rows_[static_cast<std::size_t>(cell_row)];
  for (std::int64_t cell_column = 0; cell_column < cell_columns(); ++cell_column) {
    const std::int64_t first = cell_column * cell_, end = std::min(first + cell_, columns_);
    float most = 0;
    for (std::int64_t j = first; j < end; ++j) most = weights[j] > most ? weights[j] : most;
    float& kept = max_[Cell(cell_row, cell_column)];
    kept = std::max(kept, most);
    sum_[Cell(cell_row, cell_column)] +=
        scratch.before[static_cast<std::size_t>(end)] - scratch.before[static_cast<std::size_t>(first)];
  }
}

void HeadSummary::AddDistances(std::int64_t row, double sum, const RowScratch& scratch) {
  const std::int64_t p = position_ + row;
  const auto until = [&](std::int64_t key) {  // a place in the sums before
    return static_cast<std::size_t>(std::clamp<std::int64_t>(key, 0, columns_));
  };
  for (DistanceBin& bin : distances_) {
    bin.weight += (scratch.before[until(p - bin.from + 1)] - scratch.before[until(p - bin.to)]) / sum;
  }
  // sum w |p - j|: keys up to p count p - j, the others j - p.
  const std::size_t own = until(p + 1);
  const double place = static_cast<double>(p);
  const double of_earlier = place * scratch.before[own] - scratch.moment_before[own];
  const double of_later = (scratch.moment_before.back() - scratch.moment_before[own]) -
                          place * (scratch.before.back() - scratch.before[own]);
  distance_sum_ += (of_earlier + of_later) / sum;
}

std::int64_t HeadSummary::KeysFor90(const float* weights, double sum, RowScratch& scratch) const {
  std::fill(scratch.bucket_count.begin(), scratch.bucket_count.end(), 0);
  std::fill(scratch.bucket_sum.begin(), scratch.bucket_sum.end(), 0);
  for (std::int64_t j = 0; j < columns_; ++j) {
    const std::size_t bucket = BucketOf(weights[j]);
    ++scratch.bucket_count[bucket];
    scratch.bucket_sum[bucket] += weights[j];
  }
  // Whole buckets from the largest weights down, then the weights of the bucket where the share is reached.
  const double wanted = kShare * sum;
  double held = 0;
  std::int64_t keys = 0;
  std::size_t bucket = kBuckets - 1;
  for (; bucket > 0 && held + scratch.bucket_sum[bucket] < wanted; --bucket) {
    held += scratch.bucket_sum[bucket];
    keys += scratch.bucket_count[bucket];
  }
  scratch.bucket.clear();
  for (std::int64_t j = 0; j < columns_; ++j) {
    if (BucketOf(weights[j]) == bucket) scratch.bucket.push_back(weights[j]);
  }
  // The larger half either reaches the share or is all part of it.
  auto first = scratch.bucket.begin();
  for (auto end = scratch.bucket.end(); end - first > 1;) {
    const auto middle = first + (end - first) / 2;
    std::nth_element(first, middle, end, std::greater<>());
    const double half = std::accumulate(first, middle, 0.0);
    if (held + half >= wanted) {
      end = middle;
    } else {
      held += half;
      keys += middle - first;
      first = middle;
    }
  }
  return keys + 1;
}

std::vector<KeyWeight> HeadSummary::TopKeys(const float* weights) const {
  std::vector<std::int64_t> keys(static_cast<std::size_t>(columns_));
  std::iota(keys.begin(), keys.end(), 0);
  const std::size_t count = std::min(kTopKeys, keys.size());
  std::partial_sort(
      keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count), keys.end(),
      [&](std::int64_t a, std::int64_t b) { return weights[a] != weights[b] ? weights[a] > weights[b] : a < b; });
  std::vector<KeyWeight> top;
  for (std::size_t n = 0; n < count && weights[keys[n]] > 0; ++n) top.push_back({keys[n], weights[keys[n]]});
  return top;
}

WeightsSummary::WeightsSummary(const OutputLayout& layout, std::int64_t sequence, std::int64_t position,
                               std::int64_t cells_max, std::int64_t listed_max)
    : sequence_(sequence),
      columns_(layout.columns),
      row_(static_cast<std::size_t>(layout.columns)),
      scratch_(layout.columns) {
  std::vector<std::int64_t> listed;
  const std::int64_t count = std::min(layout.rows, listed_max);
  for (std::int64_t n = 0; n < count; ++n) {
    listed.push_back(count == 1 ? 0 : n * (layout.rows - 1) / (count - 1));
  }
  for (std::int64_t h = 0; h < layout.heads; ++h) {
    heads_.emplace_back(layout.rows, layout.columns, position, cells_max, listed);
  }
}

absl::Status WeightsSummary::Take(const v1::Block& block) {
  if (block.batch() != sequence_) return absl::OkStatus();
  if (block.dtype() != v1::DATA_TYPE_FLOAT32) {
    return absl::InternalError(absl::StrCat("the server sent weights of dtype ", block.dtype(), ", not float32"));
  }
  HeadSummary& head = heads_[static_cast<std::size_t>(block.head())];
  const auto bytes = static_cast<std::size_t>(block.columns()) * sizeof(float);
  for (std::int64_t r = 0; r < block.rows(); ++r) {
    const char* from = block.data().data() + static_cast<std::size_t>(r) * bytes;
    const std::int64_t row = block.first_row() + r;
    if (block.columns() == columns_) {
      std::memcpy(row_.data(), from, bytes);
      head.AddRow(row, row_.data(), scratch_);
      continue;
    }
    OpenRow& open = open_[{block.head(), row}];
    if (open.weights.empty()) {
      if (static_cast<std::int64_t>(open_.size()) * columns_ * 4 > kOpenBytesMax && open_.size() > 1) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the server's blocks leave more than ", kOpenBytesMax, " bytes of rows unfinished"));
      }
      open.weights.resize(static_cast<std::size_t>(columns_));
      open.missing = columns_;
    }
    std::memcpy(open.weights.data() + block.first_column(), from, bytes);
    open.missing -= block.columns();
    if (open.missing < 0) return absl::InternalError("the server sent more weights of a row than it has keys");
    if (open.missing == 0) {
      head.AddRow(row, open.weights.data(), scratch_);
      open_.erase({block.head(), row});
    }
  }
  return absl::OkStatus();
}

}  // namespace attnd::client
