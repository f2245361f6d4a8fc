// What the weights of a head look like, from its rows as they pass by: nothing of size Nq * Nk is held.
//
// Of a row of weights w over the keys, s = sum w (1, or less where a sink takes part):
//   entropy         -sum (w / s) log2 (w / s), in bits
//   effective keys  2^entropy: as many keys as would have this entropy if they shared the weight evenly
//   keys for 90 %   the fewest keys whose weights add up to at least 0.9 s
// A row whose weights are all 0 is empty, one with a NaN or an infinity is nonfinite; neither is part of any number.
//
// Rows come in blocks, in any order, and a row's columns perhaps in several blocks: those of an unfinished row wait for
// the rest. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "attnd/v1/attention.pb.h"
#include "client/problem.h"

namespace attnd::client {

struct KeyWeight {
  std::int64_t key = 0;
  double weight = 0;
};

struct RowSummary {
  float entropy_bits = 0;
  std::int64_t keys_for_90 = 0;  // 0: the row is empty or nonfinite
  double effective_keys() const;
};

// Keys at a distance from `from` to `to`, both among them: of a query at position p and a key j, p - j. Negative ones
// come after the query.
struct DistanceBin {
  std::int64_t from = 0, to = 0;
  double weight = 0;  // added up over rows, each row's as shares of its s
};

// Room for the row at hand.
struct RowScratch {
  explicit RowScratch(std::int64_t columns);
  std::vector<double> before, moment_before;  // sums of w, and of w j, over the keys before a place; columns + 1
  std::vector<std::int64_t> bucket_count;     // of weights by size
  std::vector<double> bucket_sum;
  std::vector<float> bucket;
};

class HeadSummary {
 public:
  // Rows of `columns` weights. `position` is where row 0 stands among the keys. Cells of the heat map are the smallest
  // squares of which at most `cells_max` fit beside each other; `listed` rows get their top keys.
  HeadSummary(std::int64_t rows, std::int64_t columns, std::int64_t position, std::int64_t cells_max,
              std::vector<std::int64_t> listed);

  // A whole row, once.
  void AddRow(std::int64_t row, const float* weights, RowScratch& scratch);

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t cell() const { return cell_; }  // rows and keys of a cell
  std::int64_t cell_rows() const { return (rows_ + cell_ - 1) / cell_; }
  std::int64_t cell_columns() const { return (columns_ + cell_ - 1) / cell_; }
  float MaxOf(std::int64_t cell_row, std::int64_t cell_column) const { return max_[Cell(cell_row, cell_column)]; }
  // Over the entries of the cell that lie in rows that are not nonfinite; excluded ones are 0.
  double MeanOf(std::int64_t cell_row, std::int64_t cell_column) const;
  const std::vector<RowSummary>& row_summaries() const { return row_summaries_; }
  const std::map<std::int64_t, std::vector<KeyWeight>>& top_keys() const { return top_keys_; }  // by listed row
  const std::vector<DistanceBin>& distances() const { return distances_; }
  // Of each key: the weight that rows give it, added up, and the rows that give it at least a tenth of theirs.
  const std::vector<double>& received() const { return received_; }
  const std::vector<std::int64_t>& tenths() const { return tenths_; }
  std::int64_t empty_rows() const { return empty_rows_; }
  std::int64_t nonfinite_rows() const { return nonfinite_rows_; }
  std::int64_t counted_rows() const { return counted_rows_; }  // neither empty nor nonfinite
  double weight() const { return weight_; }                    // s added up over them
  double distance_sum() const { return distance_sum_; }        // mean |p - j| of each row, added up over them

 private:
  std::size_t Cell(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(row * cell_columns() + column);
  }
  void AddToCells(std::int64_t row, const float* weights, const RowScratch& scratch);
  void AddDistances(std::int64_t row, double sum, const RowScratch& scratch);
  std::int64_t KeysFor90(const float* weights, double sum, RowScratch& scratch) const;
  std::vector<KeyWeight> TopKeys(const float* weights) const;

  std::int64_t rows_, columns_, position_, cell_;
  std::vector<float> max_;
  std::vector<double> sum_;
  std::vector<std::int64_t> finite_rows_;  // by row of cells
  std::vector<RowSummary> row_summaries_;
  std::map<std::int64_t, std::vector<KeyWeight>> top_keys_;
  std::vector<DistanceBin> distances_;
  std::vector<double> received_;
  std::vector<std::int64_t> tenths_;
  std::int64_t empty_rows_ = 0, nonfinite_rows_ = 0, counted_rows_ = 0;
  double weight_ = 0, distance_sum_ = 0;
};

// The heads of one sequence, from the blocks of a stream's weights.
class WeightsSummary {
 public:
  // `layout` is that of the weights. The listed rows are spread evenly, the first and the last among them.
  WeightsSummary(const OutputLayout& layout, std::int64_t sequence, std::int64_t position, std::int64_t cells_max,
                 std::int64_t listed_max);

  // A block of weights that fits the layout; those of other sequences are passed over. RESOURCE_EXHAUSTED when more
  // rows are unfinished than memory is meant for, INTERNAL when a row gets more weights than it has.
  absl::Status Take(const v1::Block& block);

  const std::vector<HeadSummary>& heads() const { return heads_; }

 private:
  struct OpenRow {
    std::vector<float> weights;
    std::int64_t missing = 0;
  };
  const std::int64_t sequence_, columns_;
  std::vector<HeadSummary> heads_;
  std::map<std::pair<std::int64_t, std::int64_t>, OpenRow> open_;  // (head, row)
  std::vector<float> row_;                                         // an aligned copy of what a block holds
  RowScratch scratch_;
};

}  // namespace attnd::client
