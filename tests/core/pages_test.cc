// K and V in pages against the same rows gathered into one array: the bytes of every output are the same, in both
// modes, and what no key below kv_len needs is never looked at.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>

#include "core/attention.h"
#include "tests/core/inputs.h"

namespace attnd {
namespace {

struct Shape {
  std::int64_t batch, q_heads, kv_heads, q_rows, places, page_rows, d_k, d_v;
};

struct Types {
  DType k = DType::kFloat32, v = DType::kFloat32;
};

std::int64_t Pick(std::mt19937& generator, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
}

// One problem said twice: `paged` with a table, `dense` with its rows gathered.
class PagedPair {
 public:
  PagedPair(const Shape& s, Types types, Layout layout, std::mt19937& generator) : s_(s), generator_(generator) {
    std::vector<std::int64_t> kv_len, q_len;
    for (std::int64_t b = 0; b < s.batch; ++b) kv_len.push_back(Pick(generator, 0, s.places * s.page_rows));
    kv_len.back() = s.places * s.page_rows;
    paged.options.layout = layout;
    paged.options.kv_len = kv_len;
    paged.options.q_len.assign(static_cast<std::size_t>(s.batch), s.q_rows);
    paged.q = Tensor(s.batch, s.q_heads, s.q_rows, s.d_k, DType::kFloat32);
    MakeTable();
    paged.k = Tensor(pages_, s.kv_heads, s.page_rows, s.d_k, types.k);
    paged.v = Tensor(pages_, s.kv_heads, s.page_rows, s.d_v, types.v);
    dense = paged;
    dense.options.page_table.reset();
    dense.k = Gather(*paged.k);
    dense.v = Gather(*paged.v);
    PoisonWhatNoKeyNeeds(*paged.k);
    PoisonWhatNoKeyNeeds(*paged.v);
  }

  // The same change of both.
  template <class Change>
  void Both(Change change) {
    change(paged);
    change(dense);
  }

  // k and v one page at a time, each an allocation of its own that ends where the page does; null where none is needed.
  ProblemInputs PageByPage() {
    ProblemInputs inputs = paged;
    for (InputTensor* tensor : {&*inputs.k, &*inputs.v}) {
      const std::int64_t bytes = tensor->shape[1] * tensor->shape[2] * tensor->shape[3] * ElementBytes(tensor->dtype);
      for (std::int64_t p = 0; p < pages_; ++p) {
        if (!needed_[static_cast<std::size_t>(p)]) {
          tensor->pages.push_back(nullptr);
          continue;
        }
        const std::byte* const from = tensor->data + p * bytes;
        tensor->pages.push_back(allocations_.emplace_back(from, from + bytes).data());
      }
      tensor->data = nullptr;
    }
    return inputs;
  }

  const std::vector<std::int64_t>& table() const { return table_; }

  ProblemInputs paged, dense;
  TensorStore store;

 private:
  InputTensor Tensor(std::int64_t first, std::int64_t heads, std::int64_t rows, std::int64_t width, DType dtype) {
    std::normal_distribution<double> normal;
    std::vector<double> values(static_cast<std::size_t>(first * heads * rows * width));
    for (double& value : values) value = normal(generator_);
    const bool rows_first = paged.options.layout == Layout::kBNHD;
    return store.Floats({first, rows_first ? rows : heads, rows_first ? heads : rows, width}, values, dtype);
  }

  // Shuffled pages; the first places of all sequences share theirs; -1 and other nonsense where no key is.
  void MakeTable() {
    pages_ = s_.batch * s_.places + 3;
    std::vector<std::int64_t> order(static_cast<std::size_t>(pages_));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), generator_);
    needed_.assign(static_cast<std::size_t>(pages_), false);
    for (std::int64_t b = 0; b < s_.batch; ++b) {
      for (std::int64_t t = 0; t < s_.places; ++t) {
        const bool shared = t < s_.places / 3;
        const bool needed = t * s_.page_rows < paged.options.kv_len[static_cast<std::size_t>(b)];
        const std::int64_t page = order[static_cast<std::size_t>(shared ? t : b * s_.places + t)];
        const std::int64_t nonsense = t % 2 == 0 ? -1 : std::int64_t{1} << 60;
        table_.push_back(needed ? page : nonsense);
        if (needed) needed_[static_cast<std::size_t>(page)] = true;
      }
    }
    std::vector<std::byte>& bytes = allocations_.emplace_back(table_.size() * sizeof(std::int64_t) + 1);
    if (!table_.empty()) std::memcpy(bytes.data() + 1, table_.data(), bytes.size() - 1);  // at an odd address
    paged.options.page_table = InputTensor{DType::kInt64, {s_.batch, s_.places}, bytes.data() + 1};
  }

  // Where row `row` of head `head` of page (or sequence) `first` begins, in bytes.
  std::int64_t Offset(const InputTensor& tensor, std::int64_t first, std::int64_t head, std::int64_t row) const {
    const std::vector<std::int64_t>& shape = tensor.shape;
    const bool rows_first = paged.options.layout == Layout::kBNHD;
    const std::int64_t second = rows_first ? row : head, third = rows_first ? head : row;
    return ((first * shape[1] + second) * shape[2] + third) * shape[3] * ElementBytes(tensor.dtype);
  }

  InputTensor Gather(const InputTensor& from) {
    const std::int64_t keys = s_.places * s_.page_rows, width = from.shape[3];
    const bool rows_first = paged.options.layout == Layout::kBNHD;
    InputTensor to = store.Filled({s_.batch, rows_first ? keys : s_.kv_heads, rows_first ? s_.kv_heads : keys, width},
                                  0, from.dtype);
    for (std::int64_t b = 0; b < s_.batch; ++b) {
      for (std::int64_t j = 0; j < paged.options.kv_len[static_cast<std::size_t>(b)]; ++j) {
        const std::int64_t page = table_[static_cast<std::size_t>(b * s_.places + j / s_.page_rows)];
        for (std::int64_t h = 0; h < s_.kv_heads; ++h) {
          std::memcpy(const_cast<std::byte*>(to.data) + Offset(to, b, h, j),
                      from.data + Offset(from, page, h, j % s_.page_rows),
                      static_cast<std::size_t>(width * ElementBytes(from.dtype)));
        }
      }
    }
    return to;
  }

  void PoisonWhatNoKeyNeeds(const InputTensor& tensor) {
    for (std::int64_t p = 0; p < pages_; ++p) {
      if (needed_[static_cast<std::size_t>(p)]) continue;
      std::byte* const page = const_cast<std::byte*>(tensor.data) + Offset(tensor, p, 0, 0);
      for (std::int64_t n = 0; n < tensor.shape[1] * tensor.shape[2] * tensor.shape[3]; ++n)
        StoreFromDouble(tensor.dtype, NAN, page + n * ElementBytes(tensor.dtype));
    }
  }

  const Shape s_;
  std::mt19937& generator_;
  std::int64_t pages_ = 0;
  std::vector<std::int64_t> table_;  // [B, T]
  std::vector<bool> needed_;         // by page
  std::deque<std::vector<std::byte>> allocations_;
};

Problem Create(const ProblemInputs& inputs) {
  absl::StatusOr<Problem> problem = Problem::Create(inputs, {});
  EXPECT_TRUE(problem.ok()) << problem.status();
  EXPECT_TRUE(problem->CheckContents().ok()) << problem->CheckContents();
  return *std::move(problem);
}

DenseAnswer Answer(const ProblemInputs& inputs) {
  static auto* const executor = new Executor(2);
  absl::StatusOr<DenseAnswer> answer = Attend(Create(inputs), *executor);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return *std::move(answer);
}

const std::vector<OutputKind> kEverything = {OutputKind::kWeights,      OutputKind::kLse,
                                             OutputKind::kScoresDot,    OutputKind::kScoresScaled,
                                             OutputKind::kScoresCapped, OutputKind::kScoresBiased};

void ExpectSameBytes(PagedPair& pair) {
  const DenseAnswer want = Answer(pair.dense), got = Answer(pair.paged);
  for (std::size_t kind = 1; kind < want.tensors.size(); ++kind) {
    EXPECT_TRUE(got.tensors[kind] == want.tensors[kind]) << Name(static_cast<OutputKind>(kind));
  }
  EXPECT_FALSE(want.tensors[1].empty());
  EXPECT_EQ(got.nonfinite_rows, 0);
  EXPECT_TRUE(Answer(pair.PageByPage()).tensors == want.tensors);
}

TEST(AttentionPagesTest, BytesAreThoseOfTheGatheredRows) {
  constexpr Types kTypes[] = {{DType::kFloat32, DType::kFloat32},
                              {DType::kFloat16, DType::kFloat16},
                              {DType::kBFloat16, DType::kBFloat16},
                              {DType::kBFloat16, DType::kFloat32},
                              {DType::kFloat32, DType::kFloat16}};
  std::mt19937 generator(1);
  for (const std::int64_t page_rows : {1, 7, 16, 64, 256, 300}) {
    for (const std::int64_t q_rows : {1, 5, 130}) {
      for (const Types& types : kTypes) {
        for (const Layout layout : {Layout::kBHND, Layout::kBNHD}) {
          SCOPED_TRACE(std::to_string(page_rows) + " rows a page, " + std::to_string(q_rows) + " queries, " +
                       std::string(Name(types.k)) + " " + std::string(Name(types.v)));
          const Shape s{3, 4, 2, q_rows, 600 / page_rows + 1, page_rows, 19, 36};
          PagedPair pair(s, types, layout, generator);
          pair.Both([&](ProblemInputs& in) {
            in.options.causal = page_rows % 2 == 0;
            if (q_rows == 5) in.outputs = kEverything;
          });
          ExpectSameBytes(pair);
        }
      }
    }
  }
}

TEST(AttentionPagesTest, BytesAreThoseOfTheGatheredRowsForOptions) {
  std::mt19937 generator(2);
  const auto pick = [&](std::int64_t low, std::int64_t high) { return Pick(generator, low, high); };
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE(round);
    const std::int64_t kv_heads = pick(1, 3), page_rows = pick(1, 70);
    const Shape s{pick(1, 3), kv_heads * pick(1, 3), kv_heads,   pick(0, 1) ? pick(1, 4) : pick(5, 140), pick(0, 9),
                  page_rows,  pick(2, 40),           pick(1, 40)};
    PagedPair pair(s, {}, pick(0, 1) ? Layout::kBNHD : Layout::kBHND, generator);
    const std::int64_t keys = s.places * s.page_rows;
    OptionInputs options = pair.paged.options;
    options.causal = pick(0, 1);
    if (pick(0, 2) == 0) options.window_left = pick(0, 200);
    if (pick(0, 2) == 0) options.window_right = pick(0, 200);
    if (pick(0, 2) == 0) options.softcap = 3;
    for (std::int64_t h = 0; h < s.q_heads && round % 4 == 1; ++h) options.alibi_slopes.push_back(0.25F);
    for (std::int64_t h = 0; h < s.q_heads && round % 5 == 2; ++h) options.sinks.push_back(0.5F);
    for (std::int64_t& q_len : options.q_len) q_len = pick(0, s.q_rows);
    if (round % 3 == 1) {
      std::vector<std::int64_t> positions;
      for (std::int64_t n = 0; n < s.batch * keys; ++n) positions.push_back(pick(0, 1000));
      options.rotary.emplace().rotary_dim = 2;
      options.rotary->k_positions = pair.store.Ints({s.batch, keys}, positions);
    }
    if (pick(0, 1)) {
      std::vector<int> mask;
      for (std::int64_t n = 0; n < s.batch * keys; ++n) mask.push_back(static_cast<int>(pick(0, 3) > 0));
      options.mask = pair.store.Bools({s.batch, 1, 1, keys}, mask);
    }
    if (pick(0, 1)) {
      std::vector<double> bias;
      for (std::int64_t n = 0; n < s.q_rows * keys; ++n) bias.push_back(pick(0, 9) == 0 ? -INFINITY : 0.01 * n);
      options.bias = pair.store.Floats({s.q_rows, keys}, bias, DType::kFloat32);
    }
    pair.Both([&](ProblemInputs& in) {
      const std::optional<InputTensor> table = in.options.page_table;
      in.options = options;
      in.options.page_table = table;
      in.outputs = kEverything;
    });
    ExpectSameBytes(pair);
    pair.Both([](ProblemInputs& in) { in.options.reference = true; });
    ExpectSameBytes(pair);
    if (HasFailure()) return;
  }
}

// A NaN in the value of a key that a mask excludes lies in a page that is read.
TEST(AttentionPagesTest, ExcludedValuesOfAPageNeverMatter) {
  std::mt19937 generator(3);
  for (const std::int64_t q_rows : {2, 20}) {
    PagedPair pair({1, 2, 1, q_rows, 5, 16, 8, 8}, {}, Layout::kBHND, generator);
    std::vector<int> mask(80, 1);
    mask[21] = 0;
    const InputTensor bools = pair.store.Bools({80}, mask);
    pair.Both([&](ProblemInputs& in) { in.options.mask = bools; });
    const std::int64_t row = pair.table()[1] * 16 + 5;
    for (const InputTensor* tensor : {&*pair.paged.k, &*pair.paged.v})
      std::fill_n(const_cast<float*>(reinterpret_cast<const float*>(tensor->data)) + row * 8, 8, NAN);
    ExpectSameBytes(pair);
  }
}

// Queries of 0 weigh all keys alike, so the output is the mean of the values, which here say where they lie.
TEST(AttentionPagesTest, ReadsTheRowsThatTheTableNames) {
  for (const bool reference : {false, true}) {
    for (const std::int64_t q_rows : {1, 6}) {
      TensorStore store;
      ProblemInputs inputs;
      inputs.q = store.Filled({2, 1, q_rows, 4}, 0, DType::kFloat32);
      inputs.k = store.Filled({3, 1, 2, 4}, 1, DType::kFloat32);
      inputs.v = store.Floats({3, 1, 2, 1}, {1, 2, 40, 80, 100, 200}, DType::kFloat32);
      inputs.options.page_table = store.Ints({2, 3}, {2, 0, -1, 2, 2, 1});
      inputs.options.kv_len = {3, 6};
      inputs.options.reference = reference;
      const DenseAnswer answer = Answer(inputs);
      for (std::int64_t row = 0; row < 2 * q_rows; ++row) {
        const double got = LoadAsDouble(DType::kFloat32, answer.tensors[1].data() + row * 4);
        const double want = row < q_rows ? (100 + 200 + 1) / 3.0 : (100 + 200 + 100 + 200 + 40 + 80) / 6.0;
        EXPECT_NEAR(got, want, 1e-4) << row;
      }
    }
  }
}

}  // namespace
}  // namespace attnd
