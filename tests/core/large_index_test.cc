// Offsets and sizes past 2^31 elements and 2^32 bytes. Most of it is arithmetic on addresses that nobody reads; where
// something is read, it lies at the far end of an address range of which a few pages are touched.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <utility>

#include "core/attention.h"
#include "core/cost.h"
#include "core/tensor.h"
#include "core/tile_plan.h"
#include "tests/core/compare.h"
#include "tests/core/random_problem.h"

namespace attnd {
namespace {

constexpr std::int64_t kTwo31 = std::int64_t{1} << 31;

// No limit but that of int64.
constexpr ProblemLimits kNoLimits = {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::max(),
                                     std::numeric_limits<std::int64_t>::max()};

// An address that nobody reads from: rows are found by adding to it.
std::byte* Base() { return reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40); }

// 3 sequences of 4 heads of 2^20 rows of 512: 3 * 2^31 elements, 3 * 2^33 bytes.
TEST(LargeIndexTest, RowsOfAViewInBothLayouts) {
  for (const bool rows_first : {false, true}) {
    ProblemInputs inputs;
    inputs.options.layout = rows_first ? Layout::kBNHD : Layout::kBHND;
    const std::int64_t heads = 4, rows = 1048576;
    inputs.q = {DType::kFloat32, {3, rows_first ? rows : heads, rows_first ? heads : rows, 512}, Base()};
    inputs.k = inputs.v = inputs.q;
    const Problem problem = Made(inputs, kNoLimits);
    for (const TensorView* view : {&problem.q, &problem.k, &problem.v}) {
      // Row (2, 3, 1000000), its place written out for each layout.
      const std::int64_t line = 2 * 4194304 + (rows_first ? 4 * 1000000 + 3 : 3 * 1048576 + 1000000);
      ASSERT_GT(line * 512, 2 * kTwo31);
      EXPECT_EQ(view->Row(2, 3, 1000000) - Base(), line * 2048);
      EXPECT_EQ(view->Row(2, 3, 1048575) - Base(), 25769803776 - 2048);  // the last
    }
    EXPECT_EQ(problem.input_bytes, 3 * 25769803776);
  }
}

TEST(LargeIndexTest, RowsOfMaskAndBias) {
  ProblemInputs inputs = ShapedInputs({2, 2, 100000, 1}, {2, 1, 70000, 1}, {2, 1, 70000, 1});
  inputs.options.mask = {DType::kBool, {100000, 70000}, Base()};  // 7e9 elements a head
  inputs.options.bias = {DType::kFloat16, {2, 100000, 70000}, Base()};
  const Problem problem = Made(inputs, kNoLimits);
  EXPECT_EQ(problem.mask->Row(1, 1, 99999) - Base(), 6999930000);
  EXPECT_EQ(problem.bias->Row(1, 1, 99999) - Base(), (7000000000 + 6999930000) * 2);
  EXPECT_EQ(problem.mask_elements, 7000000000);
}

TEST(LargeIndexTest, ShapesAndBytesOfEveryOutput) {
  ProblemInputs inputs = ShapedInputs({3, 8, 65536, 64}, {3, 4, 131072, 64}, {3, 4, 131072, 96});
  inputs.outputs = {OutputKind::kWeights, OutputKind::kLse};
  const Problem problem = Made(inputs, kNoLimits);
  EXPECT_EQ(problem.OutputShape(OutputKind::kWeights), (std::array<std::int64_t, 4>{3, 8, 65536, 131072}));
  EXPECT_EQ(problem.ReplyShape(OutputKind::kWeights), (std::vector<std::int64_t>{3, 8, 65536, 131072}));
  const Cost cost = EstimateCost(problem).value();
  EXPECT_EQ(cost.scores_per_head, 8589934592);                              // 2^16 * 2^17
  EXPECT_EQ(cost.naive_score_bytes, 24 * 34359738368);                      // 24 heads of 2^35
  EXPECT_EQ(cost.output_bytes, 603979776);                                  // 24 * 2^16 * 96 * 4
  EXPECT_EQ(cost.reply_bytes - cost.output_bytes, 824633720832 + 6291456);  // W: 24 * 2^33 * 4, LSE: 24 * 2^16 * 4
  EXPECT_EQ(cost.packed_k_bytes, 12 * 512 * 272 * 64 * std::int64_t{4});    // 512 tiles, whose rows are 272 apart
  EXPECT_EQ(cost.multiply_adds, 24 * 8589934592 * (64 + 96));
  EXPECT_EQ(cost.tiles, 24 * 512 * 512);
}

// Counts of 2^62, and just beyond what fits.
TEST(LargeIndexTest, CostsUpToInt64) {
  const std::int64_t n = std::int64_t{1} << 30;
  ProblemInputs inputs = ShapedInputs({1, 1, n, 1}, {1, 1, n, 1}, {1, 1, n, 1});
  inputs.options.causal = true;
  const Cost cost = EstimateCost(Made(inputs, kNoLimits)).value();
  EXPECT_EQ(cost.scores_per_head, std::int64_t{1} << 60);
  EXPECT_EQ(cost.flops, std::int64_t{1} << 62);
  EXPECT_EQ(cost.flops_after_exclusion, 2 * n * (n + 1));  // 2 (d_k + d_v) N (N + 1) / 2
  inputs = ShapedInputs({1, 1, 2 * n, 1}, {1, 1, n, 1}, {1, 1, n, 1});
  EXPECT_EQ(EstimateCost(Made(inputs, kNoLimits)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LargeIndexTest, BlocksOfADenseAnswer) {
  for (const bool rows_first : {false, true}) {
    ProblemInputs inputs = ShapedInputs({3, 4, 1048576, 8}, {3, 4, 4096, 8}, {3, 4, 4096, 512});
    if (rows_first) inputs = ShapedInputs({3, 1048576, 4, 8}, {3, 4096, 4, 8}, {3, 4096, 4, 512});
    inputs.options.layout = rows_first ? Layout::kBNHD : Layout::kBHND;
    inputs.outputs = {OutputKind::kWeights, OutputKind::kLse};
    const Problem problem = Made(inputs, kNoLimits);
    std::map<OutputKind, std::int64_t> asked;
    DenseSink sink(problem, [&](OutputKind kind, std::int64_t bytes) {
      asked[kind] = bytes;
      return Base();
    });
    EXPECT_EQ(asked[OutputKind::kOutput], 25769803776);    // 12 * 2^20 * 512 * 4
    EXPECT_EQ(asked[OutputKind::kWeights], 206158430208);  // 12 * 2^20 * 4096 * 4
    EXPECT_EQ(asked[OutputKind::kLse], 50331648);
    const auto place = [&](OutputKind kind) {
      const RowSpan span = sink.Open({kind, DType::kFloat32, 2, 3, 1048000, 64, 1});
      return std::pair<std::int64_t, std::int64_t>(span.data - Base(), span.stride_bytes);
    };
    const std::int64_t line = 2 * 4194304 + 3 * 1048576 + 1048000, rows_first_line = 2 * 4194304 + 4 * 1048000 + 3;
    EXPECT_EQ(place(OutputKind::kWeights), std::pair(line * 16384, std::int64_t{16384}));
    EXPECT_EQ(place(OutputKind::kLse), std::pair(line * 4, std::int64_t{4}));
    EXPECT_EQ(place(OutputKind::kOutput), rows_first ? std::pair(rows_first_line * 2048, std::int64_t{4 * 2048})
                                                     : std::pair(line * 2048, std::int64_t{2048}));
  }
}

// A plan that packs nothing and so allocates nothing: where its tiles and rows would be is arithmetic all the same.
TEST(LargeIndexTest, TilesOfPackedKeysAndRowsOfState) {
  const Problem problem = Made(ShapedInputs({3, 4, 4, 1024}, {3, 4, 1048576, 1024}, {3, 4, 1048576, 4}), kNoLimits);
  TilePlan plan(problem);
  ASSERT_EQ(plan.packed_k.data(), nullptr);
  plan.packed_k = AlignedBuffer<float>(1);
  // 4096 tiles of 256 keys a head, whose 1024 rows are 272 floats apart.
  const std::int64_t tile = (11 * std::int64_t{4096} + 4095) * 1024 * 272;
  ASSERT_GT(tile, 2 * kTwo31);
  const auto address = [](const float* at) { return reinterpret_cast<std::uintptr_t>(at); };
  EXPECT_EQ(address(plan.KeyTile(2, 3, 4095)) - address(plan.packed_k.data()), static_cast<std::uintptr_t>(tile * 4));

  ProblemInputs few = ShapedInputs({3, 4096, 1048576, 1}, {3, 1, 1, 1}, {3, 1, 1, 1});
  few.options.q_len = {4, 0, 1};
  const Problem few_live = Made(few, kNoLimits);
  EXPECT_EQ(TilePlan(few_live).RowIndex(2, 4095, 1048575), 12884901887);  // 3 * 2^32 - 1
}

TEST(LargeIndexTest, VisibleKeysAtTheFarthestOffsets) {
  constexpr std::int64_t kOffsetMax = std::int64_t{1} << 40;
  for (const bool ahead : {true, false}) {
    ProblemInputs inputs = ShapedInputs({1, 1, 1000, 1}, {1, 1, 1000, 1}, {1, 1, 1000, 1});
    inputs.options.q_offset = {ahead ? kOffsetMax : -kOffsetMax};
    inputs.options.causal = true;
    const Problem causal = Made(inputs, kNoLimits);
    for (const std::int64_t i : {0, 1, 999}) EXPECT_EQ(causal.VisibleKeys(0, i).end, ahead ? 1000 : 0);
    EXPECT_EQ(EstimateCost(causal)->flops_after_exclusion, ahead ? 4000000 : 0);

    // A window that reaches from there to key 500 for row 0, and moves by one key a row.
    inputs.options.causal = false;
    if (ahead) inputs.options.window_left = kOffsetMax - 500;
    if (!ahead) inputs.options.window_right = kOffsetMax + 499;
    const Problem window = Made(inputs, kNoLimits);
    for (const std::int64_t i : {0, 1, 499}) {
      const Problem::KeyRange keys = window.VisibleKeys(0, i);
      EXPECT_EQ(keys.first, ahead ? 500 + i : 0);
      EXPECT_EQ(keys.end, ahead ? 1000 : 500 + i);
    }
    // Row by row 500, 499, ..., 1 and then no keys; or 500, 501, ..., 999 and then all 1000.
    const std::int64_t pairs = ahead ? 500 * 501 / 2 : 500 * 1499 / 2 + 500 * 1000;
    EXPECT_EQ(EstimateCost(window)->flops_after_exclusion, 4 * pairs);
  }
}

// Addresses that hold zeros and cost memory only where they are written; reading shares one page of zeros.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (is_mapped()) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  bool is_mapped() const { return data_ != MAP_FAILED; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  const std::size_t bytes_;
  void* const data_;
};

// Two sequences whose K and V are read in place, the second 2^31 elements and more behind the first, with few keys
// each: the bytes are those of the second alone.
TEST(AttentionLargeIndexTest, AFarSequenceGivesTheSameBytesAsANearOne) {
  std::mt19937 generator(31);
  const std::int64_t rows_max = std::int64_t{1} << 25, width = 80, keys = 300, q_rows = 3;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::int64_t element = ElementBytes(dtype);
    const auto sequence_bytes = static_cast<std::size_t>(rows_max * width * element);
    const auto used_bytes = static_cast<std::size_t>(keys * width * element);
    ASSERT_GT(rows_max * width, kTwo31);
    ASSERT_GT(sequence_bytes, std::size_t{1} << 32);
    // K and V share the addresses: V's begin where those of K that are used end.
    const SparseMemory memory(sequence_bytes + 2 * used_bytes);
    ASSERT_TRUE(memory.is_mapped());
    TensorStore store;
    ProblemInputs near = RandomInputs({1, 2, 1, q_rows, keys, width, width}, store, generator, dtype);
    near.outputs = {OutputKind::kLse};
    std::memcpy(memory.data() + sequence_bytes, near.k->data, used_bytes);
    std::memcpy(memory.data() + used_bytes + sequence_bytes, near.v->data, used_bytes);
    ProblemInputs far = near;
    far.q = store.Filled({2, 2, q_rows, width}, 0, dtype);
    const auto q_bytes = static_cast<std::size_t>(2 * q_rows * width * element);
    std::memcpy(const_cast<std::byte*>(far.q->data) + q_bytes, near.q->data, q_bytes);
    far.k = {dtype, {2, 1, rows_max, width}, memory.data()};
    far.v = {dtype, {2, 1, rows_max, width}, memory.data() + used_bytes};
    far.options.q_len = {q_rows, q_rows};
    far.options.kv_len = {5, keys};
    const DenseAnswer alone = Answer(near).answer, both = Answer(far).answer;
    for (const OutputKind kind : {OutputKind::kOutput, OutputKind::kLse}) {
      const auto& one = alone.tensors[static_cast<std::size_t>(kind)];
      const auto& two = both.tensors[static_cast<std::size_t>(kind)];
      ASSERT_EQ(two.size(), 2 * one.size());
      EXPECT_EQ(std::memcmp(two.data() + one.size(), one.data(), one.size()), 0) << Name(kind);
    }
  }
}

}  // namespace
}  // namespace attnd
