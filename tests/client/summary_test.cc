#include "client/cli/explain/summary.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "client/cli/explain/summary_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd::client {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kRows = 37, kKeys = 101, kHeads = 2;

OutputLayout Layout() {
  OutputLayout layout;
  layout.batch = 2;
  layout.heads = kHeads;
  layout.rows = kRows;
  layout.columns = kKeys;
  return layout;
}

// Rows of numbers that add up to 1.
std::vector<float> Weights() {
  std::mt19937 random(5);
  std::vector<float> weights;
  for (std::int64_t row = 0; row < kHeads * kRows; ++row) {
    std::vector<double> powers;
    double sum = 0;
    for (std::int64_t j = 0; j < kKeys; ++j) {
      powers.push_back(std::exp(static_cast<double>(random() % 1000) / 100));
      sum += powers.back();
    }
    for (const double power : powers) weights.push_back(static_cast<float>(power / sum));
  }
  return weights;
}

v1::Block BlockOf(const std::vector<float>& weights, std::int64_t head, std::int64_t row, std::int64_t rows,
                  std::int64_t column, std::int64_t columns) {
  v1::Block block;
  block.set_kind(v1::OUTPUT_KIND_WEIGHTS);
  block.set_dtype(v1::DATA_TYPE_FLOAT32);
  block.set_batch(1);
  block.set_head(head);
  block.set_first_row(row);
  block.set_rows(rows);
  block.set_first_column(column);
  block.set_columns(columns);
  for (std::int64_t r = row; r < row + rows; ++r) {
    const float* from = weights.data() + (head * kRows + r) * kKeys + column;
    block.mutable_data()->append(reinterpret_cast<const char*>(from), static_cast<std::size_t>(columns) * 4);
  }
  return block;
}

std::string Text(const WeightsSummary& summary) { return SummaryJson(summary, {"here", 1, 0, {}, 0}).dump(); }

TEST(WeightsSummaryTest, BlocksMayComeInAnyOrderAndInPiecesOfRows) {
  const std::vector<float> weights = Weights();
  WeightsSummary whole(Layout(), 1, kKeys - kRows, 16, 8);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    for (std::int64_t row = 0; row < kRows; ++row) {
      ASSERT_TRUE(whole.Take(BlockOf(weights, h, row, 1, 0, kKeys)).ok());
    }
  }
  std::vector<v1::Block> blocks;
  for (std::int64_t h = 0; h < kHeads; ++h) {
    for (std::int64_t row = 0; row < kRows; row += 5) {
      for (std::int64_t column = 0; column < kKeys; column += 30) {
        blocks.push_back(BlockOf(weights, h, row, std::min<std::int64_t>(5, kRows - row), column,
                                 std::min<std::int64_t>(30, kKeys - column)));
      }
    }
  }
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(3));
  WeightsSummary pieces(Layout(), 1, kKeys - kRows, 16, 8);
  for (v1::Block block : blocks) {
    ASSERT_TRUE(pieces.Take(block).ok());
    block.set_batch(0);  // of another sequence: passed over
    ASSERT_TRUE(pieces.Take(block).ok());
  }
  // Sums over rows were added in another order: the rounded numbers are the same.
  EXPECT_EQ(Text(pieces), Text(whole));
  EXPECT_EQ(whole.heads()[1].counted_rows(), kRows);
}

TEST(WeightsSummaryTest, EqualWeights) {
  // 8 of 10 keys share the weight: 3 bits, and 7.2 of them hold 90 %.
  HeadSummary head(1, 10, 9, 128, {0});
  RowScratch scratch(10);
  std::vector<float> row(10, 0.125F);
  row[0] = row[4] = 0;
  head.AddRow(0, row.data(), scratch);
  const RowSummary& summary = head.row_summaries()[0];
  EXPECT_FLOAT_EQ(summary.entropy_bits, 3);
  EXPECT_DOUBLE_EQ(summary.effective_keys(), 8);
  EXPECT_EQ(summary.keys_for_90, 8);
  // Keys 1, 2, 3, 5 ... 9 lie 8, 7, 6, 4 ... 0 behind position 9.
  EXPECT_DOUBLE_EQ(head.distance_sum(), (8 + 7 + 6 + 4 + 3 + 2 + 1 + 0) / 8.0);
  EXPECT_EQ(head.top_keys().at(0).front().key, 1);
}

TEST(WeightsSummaryTest, OneKeyWithAllTheWeight) {
  HeadSummary head(1, 1000, 0, 128, {});
  RowScratch scratch(1000);
  std::vector<float> row(1000, 0);
  row[999] = 1;
  head.AddRow(0, row.data(), scratch);
  EXPECT_EQ(head.row_summaries()[0].entropy_bits, 0);
  EXPECT_EQ(head.row_summaries()[0].keys_for_90, 1);
  EXPECT_DOUBLE_EQ(head.distance_sum(), 999);
  EXPECT_EQ(head.tenths()[999], 1);
}

TEST(WeightsSummaryTest, RefusesWhatNoServerShouldSend) {
  const std::vector<float> weights = Weights();
  WeightsSummary summary(Layout(), 1, 0, 16, 8);
  v1::Block block = BlockOf(weights, 0, 0, 1, 0, kKeys);
  block.set_dtype(v1::DATA_TYPE_FLOAT64);
  EXPECT_THAT(std::string(summary.Take(block).message()), HasSubstr("not float32"));
  block = BlockOf(weights, 0, 0, 1, 0, 60);
  EXPECT_TRUE(summary.Take(block).ok());
  EXPECT_TRUE(absl::IsInternal(summary.Take(block)));
}

TEST(WeightsSummaryTest, UnfinishedRowsAreBounded) {
  OutputLayout layout = Layout();
  layout.heads = 1;
  layout.rows = 1000;
  layout.columns = 1 << 20;
  WeightsSummary summary(layout, 0, 0, 16, 8);
  v1::Block block;
  block.set_dtype(v1::DATA_TYPE_FLOAT32);
  block.set_rows(1);
  block.set_columns(1);
  block.set_data(std::string(4, '\0'));
  absl::Status status;
  std::int64_t rows = 0;
  for (; status.ok() && rows < layout.rows; ++rows) {
    block.set_first_row(rows);
    status = summary.Take(block);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(rows, 33);  // 32 rows of 4 MiB are 128 MiB
}

}  // namespace
}  // namespace attnd::client
