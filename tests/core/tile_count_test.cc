// How many tiles a problem has and how many of them are computed, by counting on paper: 128 rows by 256 keys a tile, 64
// rows where a frontier cuts.
#include <gtest/gtest.h>

#include <future>
#include <limits>

#include "core/attention.h"
#include "tests/core/compare.h"
#include "tests/core/inputs.h"

namespace attnd {
namespace {

AttentionReport Report(const ProblemInputs& inputs) {
  const auto problem = std::make_shared<const Problem>(Made(inputs));
  std::vector<std::vector<std::byte>> outputs;
  DenseSink sink(*problem, [&](OutputKind, std::int64_t bytes) {
    return outputs.emplace_back(static_cast<std::size_t>(bytes)).data();
  });
  std::promise<AttentionReport> done;
  StartAttention(problem, sink, Pool(), std::make_shared<CancelToken>(),
                 [&](const AttentionReport& report) { done.set_value(report); });
  return done.get_future().get();
}

ProblemInputs Inputs(TensorStore& store, std::int64_t heads, std::int64_t kv_heads, std::int64_t rows,
                     std::int64_t keys) {
  ProblemInputs inputs;
  inputs.q = store.Filled({1, heads, rows, 16}, 0.5, DType::kFloat32);
  inputs.k = store.Filled({1, kv_heads, keys, 16}, 0.5, DType::kFloat32);
  inputs.v = store.Filled({1, kv_heads, keys, 16}, 0.5, DType::kFloat32);
  return inputs;
}

TEST(TileCountTest, AllRunWhereNothingIsExcluded) {
  TensorStore store;
  const AttentionReport report = Report(Inputs(store, 2, 2, 512, 512));
  EXPECT_EQ(report.tiles, 2 * 4 * 2);
  EXPECT_EQ(report.tiles_run, 2 * 4 * 2);
}

TEST(TileCountTest, TilesBeyondTheFrontierDoNotRun) {
  TensorStore store;
  ProblemInputs inputs = Inputs(store, 2, 2, 512, 512);
  inputs.options.causal = true;
  const AttentionReport report = Report(inputs);
  EXPECT_EQ(report.tiles, 2 * 8 * 2);
  EXPECT_EQ(report.tiles_run, 2 * (4 * 1 + 4 * 2));  // the first 256 rows see one key tile, the others two
}

TEST(TileCountTest, TilesThatAMaskExcludesWholeDoNotRun) {
  TensorStore store;
  ProblemInputs inputs = Inputs(store, 2, 2, 512, 512);
  std::vector<int> allowed(512, 1);
  std::fill(allowed.begin() + 256, allowed.end(), 0);
  inputs.options.mask = store.Bools({1, 1, 1, 512}, allowed);
  const AttentionReport report = Report(inputs);
  EXPECT_EQ(report.tiles, 16);
  EXPECT_EQ(report.tiles_run, 8);
}

TEST(TileCountTest, HeadsThatShareKeysCountEach) {
  TensorStore store;
  const AttentionReport report = Report(Inputs(store, 4, 2, 1, 1000));
  EXPECT_EQ(report.tiles, 4 * 1 * 4);
  EXPECT_EQ(report.tiles_run, 4 * 1 * 4);
}

TEST(TileCountTest, ARowThatRunsAgainIsNoFurtherTile) {
  TensorStore store;
  ProblemInputs inputs = Inputs(store, 1, 1, 200, 300);
  std::vector<double> values(300 * 16, 0.5);
  values[299 * 16] = std::numeric_limits<double>::quiet_NaN();  // in a key that the mask excludes
  inputs.v = store.Floats({1, 1, 300, 16}, values, DType::kFloat32);
  std::vector<int> allowed(300, 1);
  allowed[299] = 0;
  inputs.options.mask = store.Bools({1, 1, 1, 300}, allowed);
  const AttentionReport report = Report(inputs);
  EXPECT_EQ(report.nonfinite_rows, 0);
  EXPECT_EQ(report.tiles, 2 * 2);
  EXPECT_EQ(report.tiles_run, 2 * 2);
}

TEST(TileCountTest, ReferenceModeHasNone) {
  TensorStore store;
  ProblemInputs inputs = Inputs(store, 1, 1, 8, 8);
  inputs.options.reference = true;
  EXPECT_EQ(Report(inputs).tiles, 0);
}

}  // namespace
}  // namespace attnd
