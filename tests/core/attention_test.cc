// The tiled path against the float64 reference over random problems, and its bytes against themselves over threads,
// batch mates and wanted outputs.
#include "core/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <random>

#include "tests/core/compare.h"
#include "tests/core/random_problem.h"

namespace attnd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double At(const DenseAnswer& answer, OutputKind kind, DType dtype, std::int64_t index) {
  return LoadAsDouble(dtype, answer.tensors[static_cast<std::size_t>(kind)].data() + index * ElementBytes(dtype));
}

DenseAnswer Bytes(const ProblemInputs& inputs, Executor& executor = Pool()) { return Answer(inputs, executor).answer; }

void ExpectLikeReference(const ProblemInputs& inputs) {
  EXPECT_EQ(DifferenceFromReference(WithEveryOutput(inputs)), "");
}

// Shapes of several tiles each way; the fuzzer's own are smaller.
TEST(AttentionTest, MatchesReferenceForOptions) {
  std::mt19937 generator(3);
  const Pick pick = PickFrom(generator);
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    TensorStore store;
    const std::int64_t kv_heads = pick(1, 3), group = pick(1, 3);
    const Shape s{pick(1, 3), kv_heads * group, kv_heads, pick(1, 140), pick(1, 300), pick(1, 40), pick(1, 40)};
    ExpectLikeReference(RandomProblem(pick, s, store));
    if (HasFailure()) return;
  }
}

TEST(AttentionTest, MatchesReferenceForHalfWidths) {
  std::mt19937 generator(4);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    SCOPED_TRACE(std::string(Name(dtype)));
    TensorStore store;
    ProblemInputs inputs = RandomInputs({2, 2, 1, 50, 300, 24, 40}, store, generator, dtype);
    ExpectLikeReference(inputs);
    inputs.options.output_dtype = DType::kFloat32;
    inputs.v = store.Floats({2, 1, 300, 40}, Normal(2 * 300 * 40, generator), DType::kFloat32);
    ExpectLikeReference(inputs);
  }
}

// Values of one sign, whose roundings do not cancel: equal weights make the output their mean.
TEST(AttentionTest, LongSumsKeepTheBound) {
  std::mt19937 generator(15);
  const std::int64_t keys = 60000, width = 8;
  std::vector<double> values(static_cast<std::size_t>(keys * width)), means(static_cast<std::size_t>(width));
  for (double& value : values) value = static_cast<float>(std::uniform_real_distribution<double>(0, 1)(generator));
  for (std::size_t n = 0; n < values.size(); ++n) means[n % means.size()] += values[n] / static_cast<double>(keys);
  for (const std::int64_t rows : {1, 4, 5}) {  // in place up to four
    TensorStore store;
    ProblemInputs inputs;
    inputs.q = store.Filled({1, 1, rows, 1}, 0, DType::kFloat32);
    inputs.k = store.Filled({1, 1, keys, 1}, 1, DType::kFloat32);
    inputs.v = store.Floats({1, 1, keys, width}, values, DType::kFloat32);
    const DenseAnswer answer = Bytes(inputs);
    for (std::int64_t n = 0; n < rows * width; ++n) {
      EXPECT_NEAR(At(answer, OutputKind::kOutput, DType::kFloat32, n), means[static_cast<std::size_t>(n % width)],
                  8 * 0x1p-24 * 4)
          << rows << " rows, element " << n;
    }
  }
}

// Excluded keys and values may hold anything; the bytes are those of an answer where they held ordinary numbers.
TEST(AttentionTest, ExcludedKeysNeverMatter) {
  std::mt19937 generator(6);
  const Shape s{2, 2, 1, 150, 530, 16, 24};
  for (const bool masked : {false, true}) {
    TensorStore store;
    ProblemInputs clean = RandomInputs(s, store, generator);
    clean.options.causal = true;
    clean.options.kv_len = {530, 261};
    clean.options.q_offset = {200, 100};
    if (masked) {
      std::vector<int> mask(530, 1);
      mask[3] = mask[200] = mask[519] = 0;
      clean.options.mask = store.Bools({530}, mask);
    }
    clean.outputs = {OutputKind::kWeights, OutputKind::kLse};
    ProblemInputs poisoned = clean;
    // Keys from 350 on are beyond every row's frontier in sequence 0 (offset 200, 150 rows), those from 261 on in
    // sequence 1.
    std::vector<double> k(static_cast<std::size_t>(2 * 530 * 16)), v(static_cast<std::size_t>(2 * 530 * 24));
    const auto copy = [](const InputTensor& from, std::vector<double>& to) {
      for (std::size_t n = 0; n < to.size(); ++n) to[n] = LoadAsDouble(DType::kFloat32, from.data + n * 4);
    };
    copy(*clean.k, k);
    copy(*clean.v, v);
    const auto poison = [&](std::size_t b, std::size_t j, double value) {
      std::fill_n(k.begin() + static_cast<std::ptrdiff_t>((b * 530 + j) * 16), 16, value);
      std::fill_n(v.begin() + static_cast<std::ptrdiff_t>((b * 530 + j) * 24), 24, value);
    };
    for (std::size_t j = 350; j < 530; ++j) poison(0, j, j % 2 ? NAN : kInfinity);
    for (std::size_t j = 261; j < 530; ++j) poison(1, j, NAN);
    if (masked) poison(0, 3, NAN), poison(1, 200, kInfinity);
    poisoned.k = store.Floats({2, 1, 530, 16}, k, DType::kFloat32);
    poisoned.v = store.Floats({2, 1, 530, 24}, v, DType::kFloat32);
    const DenseAnswer want = Bytes(clean), got = Bytes(poisoned);
    EXPECT_EQ(got.nonfinite_rows, 0);
    EXPECT_TRUE(got.tensors == want.tensors);
  }
  // Inside a tile of queries, a key that later rows see and earlier ones do not.
  TensorStore store;
  ProblemInputs inputs = RandomInputs({1, 1, 1, 40, 40, 4, 4}, store, generator);
  inputs.options.causal = true;
  const DenseAnswer clean = Bytes(inputs);
  const_cast<float*>(reinterpret_cast<const float*>(inputs.v->data))[30 * 4 + 1] = NAN;
  const DenseAnswer got = Bytes(inputs);
  EXPECT_EQ(got.nonfinite_rows, 10);
  for (std::int64_t i = 0; i < 40; ++i) {
    for (std::int64_t c = 0; c < 4; ++c) {
      const double value = At(got, OutputKind::kOutput, DType::kFloat32, i * 4 + c);
      if (i >= 30 && c == 1)
        EXPECT_TRUE(std::isnan(value)) << i;
      else
        EXPECT_EQ(value, At(clean, OutputKind::kOutput, DType::kFloat32, i * 4 + c)) << i << " " << c;
    }
  }
}

TEST(AttentionTest, NonFiniteValuesPropagateAsTheContractSays) {
  std::mt19937 generator(7);
  TensorStore store;
  ProblemInputs inputs = RandomInputs({1, 1, 1, 6, 300, 4, 4}, store, generator);
  auto* const q = const_cast<float*>(reinterpret_cast<const float*>(inputs.q->data));
  auto* const k = const_cast<float*>(reinterpret_cast<const float*>(inputs.k->data));
  q[1 * 4 + 2] = NAN;  // its row and no other
  // Where q[0] > 0 the logit of key 280 is +inf and the row NaN; where q[0] < 0 it is -inf and takes no weight.
  for (int t = 0; t < 4; ++t) k[280 * 4 + t] = t == 0 ? static_cast<float>(kInfinity) : 0.0F;
  q[2 * 4] = 1;
  q[3 * 4] = -1;
  ExpectLikeReference(inputs);
  // Allowed logits that are all -inf.
  ProblemInputs all = RandomInputs({1, 1, 1, 1, 5, 1, 2}, store, generator);
  const_cast<float*>(reinterpret_cast<const float*>(all.q->data))[0] = -1;
  for (int j = 0; j < 5; ++j)
    const_cast<float*>(reinterpret_cast<const float*>(all.k->data))[j] = static_cast<float>(kInfinity);
  ExpectLikeReference(all);
}

// What overflows only in the reply's dtype is not finite in the reply.
TEST(AttentionTest, RowsThatOverflowTheirDTypeAreCounted) {
  TensorStore store;
  ProblemInputs inputs;
  inputs.q = inputs.k = store.Filled({1, 1, 2, 1}, 0, DType::kFloat32);
  inputs.v = store.Filled({1, 1, 2, 2}, 1e5, DType::kFloat32);
  inputs.options.output_dtype = DType::kFloat16;
  for (const bool reference : {false, true}) {
    inputs.options.reference = reference;
    const DenseAnswer answer = Bytes(inputs);
    EXPECT_EQ(At(answer, OutputKind::kOutput, DType::kFloat16, 3), kInfinity);
    EXPECT_EQ(answer.nonfinite_rows, 2) << reference;
  }
}

TEST(AttentionTest, BytesDoNotDependOnThreadsBatchMatesOrWantedOutputs) {
  std::mt19937 generator(8);
  const Shape s{3, 4, 2, 200, 330, 40, 24};
  TensorStore store;
  ProblemInputs batch = RandomInputs(s, store, generator);
  batch.options.causal = true;
  batch.options.kv_len = {330, 17, 300};
  batch.options.q_len = {200, 150, 9};
  Executor one(1), four(4);
  const DenseAnswer base = Bytes(batch, one);
  EXPECT_TRUE(Bytes(batch, Pool()).tensors == base.tensors);
  EXPECT_TRUE(Bytes(batch, four).tensors == base.tensors);
  ProblemInputs more = batch;
  more.outputs = {OutputKind::kWeights, OutputKind::kLse, OutputKind::kScoresDot};
  EXPECT_TRUE(Bytes(more).tensors[1] == base.tensors[1]);
  const auto& all = base.tensors[1];
  const std::size_t sequence_bytes = all.size() / 3;
  for (std::size_t b = 0; b < 3; ++b) {
    ProblemInputs alone = batch;
    for (InputTensor* tensor : {&*alone.q, &*alone.k, &*alone.v}) {
      tensor->shape[0] = 1;
      tensor->data += static_cast<std::int64_t>(b) * CheckedProduct(tensor->shape).value() * 4;
    }
    alone.options.kv_len = {batch.options.kv_len[b]};
    alone.options.q_len = {batch.options.q_len[b]};
    const auto bytes = Bytes(alone).tensors[1];
    ASSERT_EQ(bytes.size(), sequence_bytes);
    EXPECT_EQ(std::memcmp(bytes.data(), all.data() + b * sequence_bytes, sequence_bytes), 0) << b;
  }
}

// Few queries read K and V in place, all heads of a group together; a head alone gives the same bytes.
TEST(AttentionTest, BytesOfFewQueriesDoNotDependOnTheGroup) {
  std::mt19937 generator(12);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const std::int64_t q_rows : {1, 2, 4}) {
      const std::int64_t heads = 70;  // more than a tile holds
      TensorStore store;
      ProblemInputs group = RandomInputs({1, heads, 1, q_rows, 700, 40, 24}, store, generator, dtype);
      group.options.causal = true;
      group.options.output_dtype = DType::kFloat32;
      ExpectLikeReference(group);
      const DenseAnswer all = Bytes(group);
      for (const std::int64_t h : {0, 1, 31, 32, 69}) {
        ProblemInputs alone = group;
        alone.q->shape[1] = 1;
        alone.q->data += h * q_rows * 40 * ElementBytes(dtype);
        const auto bytes = Bytes(alone).tensors[1];
        EXPECT_EQ(std::memcmp(bytes.data(), all.tensors[1].data() + h * q_rows * 24 * 4, bytes.size()), 0) << h;
      }
    }
  }
}

TEST(AttentionTest, FewQueriesNeverSeeExcludedValues) {
  std::mt19937 generator(13);
  TensorStore store;
  ProblemInputs inputs = RandomInputs({1, 6, 2, 2, 300, 8, 8}, store, generator);
  std::vector<int> mask(300, 1);
  mask[7] = mask[290] = 0;
  inputs.options.mask = store.Bools({300}, mask);
  inputs.outputs = {OutputKind::kWeights, OutputKind::kLse};
  const DenseAnswer clean = Bytes(inputs);
  for (const std::int64_t key : {7, 290, 300 + 7, 300 + 290}) {
    for (const InputTensor* tensor : {&*inputs.k, &*inputs.v}) {
      std::fill_n(const_cast<float*>(reinterpret_cast<const float*>(tensor->data)) + key * 8, 8, NAN);
    }
  }
  EXPECT_TRUE(Bytes(inputs).tensors == clean.tensors);
}

TEST(AttentionTest, ProjectionMatchesReference) {
  std::mt19937 generator(9);
  for (const bool transposed : {false, true}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      TensorStore store;
      ProblemInputs inputs;
      const std::int64_t n = 150, d_model = 300, q_heads = 4, kv_heads = 2, d_k = 24, d_v = 20, d_out = 70;
      inputs.x = store.Floats({2, n, d_model}, Normal(2 * n * d_model, generator), DType::kFloat32);
      ProjectionInputs projection;
      projection.q_heads = q_heads;
      projection.kv_heads = kv_heads;
      projection.weights_transposed = transposed;
      const auto weight = [&](std::int64_t in, std::int64_t out) {
        std::vector<std::int64_t> shape = transposed ? std::vector{out, in} : std::vector{in, out};
        return store.Floats(shape, Normal(in * out, generator, 0.05), dtype);
      };
      projection.w_q = weight(d_model, q_heads * d_k);
      projection.w_k = weight(d_model, kv_heads * d_k);
      projection.w_v = weight(d_model, kv_heads * d_v);
      projection.w_o = weight(q_heads * d_v, d_out);
      projection.b_q = store.Floats({q_heads * d_k}, Normal(q_heads * d_k, generator), DType::kFloat32);
      projection.b_o = store.Floats({d_out}, Normal(d_out, generator), DType::kFloat16);
      inputs.projection = projection;
      inputs.options.lengths = {150, 77};
      inputs.options.causal = true;
      EXPECT_EQ(DifferenceFromReference(inputs), "");
      EXPECT_EQ(At(Bytes(inputs), OutputKind::kOutput, DType::kFloat32, (n + 77) * d_out), 0);
    }
  }
}

// Every shape up to four, alone and with every pair of options.
TEST(ExhaustiveTest, SmallShapesWithPairsOfOptions) {
  using Change = std::function<void(const Shape&, TensorStore&, ProblemInputs&)>;
  const std::vector<Change> changes = {
      [](const Shape&, TensorStore&, ProblemInputs& in) { in.options.scale = -0.7; },
      [](const Shape&, TensorStore&, ProblemInputs& in) { in.options.causal = true; },
      [](const Shape&, TensorStore&, ProblemInputs& in) {
        in.options.q_offset = {-1, 1};
      },
      [](const Shape& s, TensorStore&, ProblemInputs& in) {
        in.options.q_len = {s.q_rows, s.q_rows / 2};
        in.options.kv_len = {s.kv_rows / 2, s.kv_rows};
      },
      [](const Shape&, TensorStore&, ProblemInputs& in) { in.options.window_left = 1; },
      [](const Shape&, TensorStore&, ProblemInputs& in) { in.options.window_right = 0; },
      [](const Shape&, TensorStore&, ProblemInputs& in) { in.options.softcap = 0.8; },
      [](const Shape& s, TensorStore&, ProblemInputs& in) {
        in.options.alibi_slopes.assign(static_cast<std::size_t>(s.q_heads), 0.5F);
      },
      [](const Shape& s, TensorStore&, ProblemInputs& in) {
        in.options.sinks.assign(static_cast<std::size_t>(s.q_heads), 0.3F);
      },
      [](const Shape& s, TensorStore& store, ProblemInputs& in) {
        std::vector<int> mask(static_cast<std::size_t>(s.q_rows * s.kv_rows));
        for (std::size_t n = 0; n < mask.size(); ++n) mask[n] = n % 3 != 0;
        in.options.mask = store.Bools({s.q_rows, s.kv_rows}, mask);
      },
      [](const Shape& s, TensorStore& store, ProblemInputs& in) {
        std::vector<double> bias(static_cast<std::size_t>(s.q_heads * s.kv_rows));
        for (std::size_t n = 0; n < bias.size(); ++n) bias[n] = n % 4 == 1 ? -kInfinity : 0.25 * static_cast<double>(n);
        in.options.bias = store.Floats({s.q_heads, 1, s.kv_rows}, bias, DType::kFloat32);
      },
      [](const Shape& s, TensorStore&, ProblemInputs& in) {
        if (s.d_k < 2) return;
        in.options.rotary.emplace();
        in.options.rotary->rotary_dim = 2;
      },
  };
  std::mt19937 generator(14);
  const std::pair<std::int64_t, std::int64_t> heads[] = {{1, 1}, {2, 1}, {4, 2}};
  for (std::int64_t shape = 0; shape < 5 * 5 * 4 * 4 * 3; ++shape) {
    const auto [q_heads, kv_heads] = heads[shape % 3];
    const Shape s{2, q_heads, kv_heads, shape / 3 % 5, shape / 15 % 5, shape / 75 % 4 + 1, shape / 300 + 1};
    for (std::size_t first = 0; first < changes.size(); ++first) {
      for (std::size_t second = first; second < changes.size(); ++second) {
        TensorStore store;
        ProblemInputs inputs = RandomInputs(s, store, generator);
        changes[first](s, store, inputs);
        if (second != first) changes[second](s, store, inputs);
        if (!inputs.options.kv_len.empty() && inputs.options.q_len.empty()) continue;
        SCOPED_TRACE(std::to_string(shape) + " with " + std::to_string(first) + " and " + std::to_string(second));
        ExpectLikeReference(inputs);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(AttentionTest, ZeroSizes) {
  std::mt19937 generator(10);
  TensorStore store;
  ProblemInputs no_keys = RandomInputs({1, 1, 1, 2, 0, 2, 3}, store, generator);
  no_keys.outputs = {OutputKind::kWeights, OutputKind::kLse};
  const DenseAnswer empty = Bytes(no_keys);
  EXPECT_EQ(empty.tensors[1], std::vector<std::byte>(2 * 3 * 4));
  EXPECT_TRUE(empty.tensors[static_cast<std::size_t>(OutputKind::kWeights)].empty());
  EXPECT_EQ(At(empty, OutputKind::kLse, DType::kFloat32, 1), -kInfinity);
  EXPECT_TRUE(Bytes(RandomInputs({1, 1, 1, 0, 4, 2, 3}, store, generator)).tensors[1].empty());
  EXPECT_TRUE(Bytes(RandomInputs({0, 2, 1, 3, 4, 2, 3}, store, generator)).tensors[1].empty());
}

TEST(AttentionTest, StopsWhenCancelled) {
  std::mt19937 generator(11);
  TensorStore store;
  const Problem problem = Problem::Create(RandomInputs({1, 8, 8, 2048, 2048, 64, 64}, store, generator), {}).value();
  std::vector<std::byte> output(8 * 2048 * 64 * 4);
  DenseSink sink(problem, [&](OutputKind, std::int64_t) { return output.data(); });
  const auto cancel = std::make_shared<CancelToken>();
  std::promise<absl::Status> done;
  StartAttention(std::shared_ptr<const Problem>(std::shared_ptr<void>(), &problem), sink, Pool(), cancel,
                 [&](const AttentionReport& report) { done.set_value(report.status); });
  cancel->Cancel(absl::CancelledError("no longer wanted"));
  EXPECT_EQ(done.get_future().get(), absl::CancelledError("no longer wanted"));
}

}  // namespace
}  // namespace attnd
