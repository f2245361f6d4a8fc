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

#include "tests/core/inputs.h"

namespace attnd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEpsilon = 1.0 / (1 << 24);

struct Shape {
  std::int64_t batch, q_heads, kv_heads, q_rows, kv_rows, d_k, d_v;
};

std::vector<double> Normal(std::int64_t count, std::mt19937& generator, double spread = 1) {
  std::normal_distribution<double> normal(0, spread);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = normal(generator);
  return values;
}

ProblemInputs RandomInputs(const Shape& s, TensorStore& store, std::mt19937& generator, DType dtype = DType::kFloat32,
                           Layout layout = Layout::kBHND) {
  ProblemInputs inputs;
  inputs.options.layout = layout;
  const auto tensor = [&](std::int64_t heads, std::int64_t rows, std::int64_t width) {
    const bool rows_first = layout == Layout::kBNHD;
    return store.Floats({s.batch, rows_first ? rows : heads, rows_first ? heads : rows, width},
                        Normal(s.batch * heads * rows * width, generator), dtype);
  };
  inputs.q = tensor(s.q_heads, s.q_rows, s.d_k);
  inputs.k = tensor(s.kv_heads, s.kv_rows, s.d_k);
  inputs.v = tensor(s.kv_heads, s.kv_rows, s.d_v);
  return inputs;
}

Problem Create(const ProblemInputs& inputs) {
  absl::StatusOr<Problem> problem = Problem::Create(inputs, {});
  EXPECT_TRUE(problem.ok()) << problem.status();
  return *std::move(problem);
}

Executor& Pool() {
  static auto* const executor = new Executor(2);
  return *executor;
}

DenseAnswer Answer(const ProblemInputs& inputs, Executor& executor = Pool()) {
  absl::StatusOr<DenseAnswer> answer = Attend(Create(inputs), executor);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return *std::move(answer);
}

double At(const DenseAnswer& answer, OutputKind kind, DType dtype, std::int64_t index) {
  return LoadAsDouble(dtype, answer.tensors[static_cast<std::size_t>(kind)].data() + index * ElementBytes(dtype));
}

// The largest |scale| * sum |q||k| + |bias| + slope * |p - j| over the keys that row (b, h, i) may see by position; an
// upper bound where masked. A rotary embedding turns q and k, so there |q| |k|, the product of their lengths, bounds
// the sum.
double LogitMagnitude(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t i, double scale,
                      bool additions = true) {
  double largest = 0;
  const Problem::KeyRange keys = p.VisibleKeys(b, i);
  for (std::int64_t j = keys.first; j < keys.end; ++j) {
    double sum = 0, q_squares = 0, k_squares = 0;
    for (std::int64_t t = 0; t < p.d_k; ++t) {
      const double q = LoadAsDouble(p.q.dtype, p.q.Row(b, h, i) + t * ElementBytes(p.q.dtype));
      const double k =
          LoadAsDouble(p.k.dtype, p.k.Row(b, h / (p.q_heads / p.kv_heads), j) + t * ElementBytes(p.k.dtype));
      sum += std::abs(q * k);
      q_squares += q * q;
      k_squares += k * k;
    }
    if (p.rotary) sum = std::sqrt(q_squares * k_squares);
    double added = 0;
    if (p.bias && additions) {
      added = std::abs(
          LoadAsDouble(p.bias->dtype, p.bias->Row(b, h, i) + j * p.bias->stride[3] * ElementBytes(p.bias->dtype)));
    }
    if (!p.alibi_slopes.empty() && additions) {
      added += std::abs(p.alibi_slopes[static_cast<std::size_t>(h)] *
                        static_cast<double>(i + p.q_offset[static_cast<std::size_t>(b)] - j));
    }
    if (std::isfinite(added)) largest = std::max(largest, std::abs(scale) * sum + added);
  }
  return largest;
}

void ExpectNear(double got, double want, double bound, const std::string& what) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << what << ": " << got;
  } else if (std::isinf(want)) {
    EXPECT_EQ(got, want) << what;
  } else {
    EXPECT_LE(std::abs(got - want), bound) << what << ": got " << got << ", want " << want;
  }
}

// Runs both modes and compares every output within the contract's tolerance.
void ExpectLikeReference(ProblemInputs inputs, double rounding = 0, double values_max = 6) {
  constexpr OutputKind kScores[] = {OutputKind::kScoresDot, OutputKind::kScoresScaled, OutputKind::kScoresCapped,
                                    OutputKind::kScoresBiased};
  inputs.outputs = {OutputKind::kWeights, OutputKind::kLse};
  inputs.outputs.insert(inputs.outputs.end(), std::begin(kScores), std::end(kScores));
  const Problem problem = Create(inputs);
  const DenseAnswer tiled = Answer(inputs);
  inputs.options.reference = true;
  inputs.options.output_dtype = DType::kFloat64;
  const DenseAnswer truth = Answer(inputs);
  EXPECT_EQ(tiled.nonfinite_rows, truth.nonfinite_rows);
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t h = 0; h < problem.q_heads; ++h) {
      for (std::int64_t i = 0; i < problem.q_rows; ++i, ++row) {
        const std::string where = "b " + std::to_string(b) + " h " + std::to_string(h) + " i " + std::to_string(i);
        const double a = LogitMagnitude(problem, b, h, i, problem.scale), unit = 8 * kEpsilon * (4 + a) + 0x1p-126;
        ExpectNear(At(tiled, OutputKind::kLse, DType::kFloat32, row), At(truth, OutputKind::kLse, DType::kFloat64, row),
                   1e-6 * (4 + a), "lse " + where);
        for (std::int64_t c = 0; c < problem.d_v; ++c) {
          const bool rows_first = problem.layout == Layout::kBNHD;
          const std::int64_t place = rows_first ? (b * problem.q_rows + i) * problem.q_heads + h : row;
          const double want = At(truth, OutputKind::kOutput, DType::kFloat64, place * problem.d_v + c);
          ExpectNear(At(tiled, OutputKind::kOutput, problem.output_dtype, place * problem.d_v + c), want,
                     unit * values_max + rounding * std::abs(want), "output " + where);
        }
        const double dots = LogitMagnitude(problem, b, h, i, 1, /*additions=*/false);
        double sum = 0;
        for (std::int64_t j = 0; j < problem.kv_rows; ++j) {
          const std::int64_t index = row * problem.kv_rows + j;
          const double weight = At(tiled, OutputKind::kWeights, DType::kFloat32, index);
          const double want = At(truth, OutputKind::kWeights, DType::kFloat32, index);
          sum += weight;
          ExpectNear(weight, want, unit, "weight " + where);
          if (want == 0 && At(truth, OutputKind::kScoresDot, DType::kFloat32, index) == -kInfinity) {
            EXPECT_EQ(weight, 0) << where;
          }
          for (const OutputKind kind : kScores) {
            ExpectNear(At(tiled, kind, DType::kFloat32, index), At(truth, kind, DType::kFloat32, index),
                       8 * kEpsilon * (1 + (kind == OutputKind::kScoresDot ? dots : a)),
                       std::string(Name(kind)) + " " + where);
          }
        }
        if (sum != 0 && !std::isnan(sum) && problem.sinks.empty()) {
          EXPECT_NEAR(sum, 1, 2e-6) << where;
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(AttentionTest, MatchesReferenceAtTileBoundaries) {
  std::mt19937 generator(1);
  for (const std::int64_t q_rows : {1, 7, 8, 9, 127, 128, 129}) {
    for (const std::int64_t kv_rows : {1, 15, 64, 255, 256, 257, 513}) {
      SCOPED_TRACE(std::to_string(q_rows) + " x " + std::to_string(kv_rows));
      TensorStore store;
      ProblemInputs inputs = RandomInputs({1, 2, 1, q_rows, kv_rows, 17, 33}, store, generator);
      inputs.options.causal = (q_rows + kv_rows) % 2 == 0;
      ExpectLikeReference(inputs);
    }
  }
}

TEST(AttentionTest, MatchesReferenceAtEveryWidth) {
  std::mt19937 generator(2);
  for (const std::int64_t d : {1, 2, 7, 8, 16, 31, 64, 65, 128, 257, 513, 1100}) {
    SCOPED_TRACE(d);
    TensorStore store;
    ExpectLikeReference(RandomInputs({1, 1, 1, 33, 70, d, d == 1 ? 3 : d - 1}, store, generator));
  }
}

TEST(AttentionTest, MatchesReferenceForOptions) {
  std::mt19937 generator(3);
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE(round);
    TensorStore store;
    const auto pick = [&](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
    };
    const std::int64_t kv_heads = pick(1, 3), group = pick(1, 3);
    const Shape s{pick(1, 3), kv_heads * group, kv_heads, pick(1, 140), pick(1, 300), pick(1, 40), pick(1, 40)};
    ProblemInputs inputs =
        RandomInputs(s, store, generator, DType::kFloat32, pick(0, 3) == 0 ? Layout::kBNHD : Layout::kBHND);
    OptionInputs& options = inputs.options;
    if (pick(0, 2) == 0) options.window_left = pick(0, 200);
    if (pick(0, 2) == 0) options.window_right = pick(0, 200);
    if (pick(0, 2) == 0) options.softcap = std::vector<double>{0.5, 3, 50}[static_cast<std::size_t>(pick(0, 2))];
    for (std::int64_t h = 0; h < s.q_heads && round % 4 == 1; ++h)
      options.alibi_slopes.push_back(0.25F * static_cast<float>(pick(-1, 3)));
    for (std::int64_t h = 0; h < s.q_heads && round % 5 == 2; ++h) {
      options.sinks.push_back(std::vector<float>{-2, 1.5F, 100, -INFINITY}[static_cast<std::size_t>(pick(0, 3))]);
    }
    if (s.d_k > 1 && round % 6 == 3) {
      options.rotary.emplace();
      options.rotary->style = pick(0, 1) ? RotaryStyle::kHalf : RotaryStyle::kInterleaved;
      options.rotary->rotary_dim = 2 * pick(1, s.d_k / 2);
      if (pick(0, 1)) options.rotary->rope_base = 500.0;
    }
    if (pick(0, 1)) options.scale = std::vector<double>{0, -0.7, 1, 2.5, 1e-35}[static_cast<std::size_t>(pick(0, 4))];
    options.causal = pick(0, 1);
    for (std::int64_t b = 0; b < s.batch; ++b) {
      options.q_offset.push_back(pick(-5, s.kv_rows + 5));
      options.q_len.push_back(pick(0, s.q_rows));
      options.kv_len.push_back(pick(0, s.kv_rows));
    }
    if (pick(0, 1)) {
      std::vector<int> mask;
      const std::vector<std::int64_t> shape =
          pick(0, 1) ? std::vector<std::int64_t>{s.batch, 1, 1, s.kv_rows}
                     : std::vector<std::int64_t>{s.q_heads, s.q_rows, pick(0, 1) ? s.kv_rows : 1};
      for (std::int64_t n = CheckedProduct(shape).value(); n > 0; --n) mask.push_back(static_cast<int>(pick(0, 3) > 0));
      options.mask = store.Bools(shape, mask);
    }
    if (pick(0, 1)) {
      std::vector<double> bias = Normal(s.q_rows * (round % 3 ? s.kv_rows : 1), generator, 3);
      for (double& value : bias) {
        if (pick(0, 9) == 0) value = -kInfinity;
      }
      options.bias =
          store.Floats({s.q_rows, round % 3 ? s.kv_rows : 1}, bias, round % 2 ? DType::kFloat32 : DType::kBFloat16);
    }
    ExpectLikeReference(inputs);
    if (HasFailure()) return;
  }
}

TEST(AttentionTest, MatchesReferenceForHalfWidths) {
  std::mt19937 generator(4);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    SCOPED_TRACE(std::string(Name(dtype)));
    TensorStore store;
    ProblemInputs inputs = RandomInputs({2, 2, 1, 50, 300, 24, 40}, store, generator, dtype);
    ExpectLikeReference(inputs, dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8);
    inputs.options.output_dtype = DType::kFloat32;
    inputs.v = store.Floats({2, 1, 300, 40}, Normal(2 * 300 * 40, generator), DType::kFloat32);
    ExpectLikeReference(inputs);
  }
}

TEST(AttentionTest, SurvivesLargeLogits) {
  std::mt19937 generator(5);
  for (const double scale : {200.0, 20000.0}) {
    TensorStore store;
    ProblemInputs inputs = RandomInputs({1, 1, 1, 20, 300, 8, 8}, store, generator);
    inputs.options.scale = scale;
    ExpectLikeReference(inputs);
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
    const DenseAnswer want = Answer(clean), got = Answer(poisoned);
    EXPECT_EQ(got.nonfinite_rows, 0);
    EXPECT_TRUE(got.tensors == want.tensors);
  }
  // Inside a tile of queries, a key that later rows see and earlier ones do not.
  TensorStore store;
  ProblemInputs inputs = RandomInputs({1, 1, 1, 40, 40, 4, 4}, store, generator);
  inputs.options.causal = true;
  const DenseAnswer clean = Answer(inputs);
  const_cast<float*>(reinterpret_cast<const float*>(inputs.v->data))[30 * 4 + 1] = NAN;
  const DenseAnswer got = Answer(inputs);
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

TEST(AttentionTest, BytesDoNotDependOnThreadsBatchMatesOrWantedOutputs) {
  std::mt19937 generator(8);
  const Shape s{3, 4, 2, 200, 330, 40, 24};
  TensorStore store;
  ProblemInputs batch = RandomInputs(s, store, generator);
  batch.options.causal = true;
  batch.options.kv_len = {330, 17, 300};
  batch.options.q_len = {200, 150, 9};
  Executor one(1), four(4);
  const DenseAnswer base = Answer(batch, one);
  EXPECT_TRUE(Answer(batch, Pool()).tensors == base.tensors);
  EXPECT_TRUE(Answer(batch, four).tensors == base.tensors);
  ProblemInputs more = batch;
  more.outputs = {OutputKind::kWeights, OutputKind::kLse, OutputKind::kScoresDot};
  EXPECT_TRUE(Answer(more).tensors[1] == base.tensors[1]);
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
    const auto bytes = Answer(alone).tensors[1];
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
      const DenseAnswer all = Answer(group);
      for (const std::int64_t h : {0, 1, 31, 32, 69}) {
        ProblemInputs alone = group;
        alone.q->shape[1] = 1;
        alone.q->data += h * q_rows * 40 * ElementBytes(dtype);
        const auto bytes = Answer(alone).tensors[1];
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
  const DenseAnswer clean = Answer(inputs);
  for (const std::int64_t key : {7, 290, 300 + 7, 300 + 290}) {
    for (const InputTensor* tensor : {&*inputs.k, &*inputs.v}) {
      std::fill_n(const_cast<float*>(reinterpret_cast<const float*>(tensor->data)) + key * 8, 8, NAN);
    }
  }
  EXPECT_TRUE(Answer(inputs).tensors == clean.tensors);
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
      inputs.outputs = {OutputKind::kProjectedQ, OutputKind::kProjectedK, OutputKind::kProjectedV, OutputKind::kLse};
      const DenseAnswer tiled = Answer(inputs);
      inputs.options.reference = true;
      inputs.options.output_dtype = DType::kFloat64;
      const DenseAnswer truth = Answer(inputs);
      for (std::int64_t index = 0; index < 2 * n * d_out; ++index) {
        ASSERT_NEAR(At(tiled, OutputKind::kOutput, DType::kFloat32, index),
                    At(truth, OutputKind::kOutput, DType::kFloat64, index), 3e-5)
            << index;
      }
      EXPECT_EQ(At(tiled, OutputKind::kOutput, DType::kFloat32, (n + 77) * d_out), 0);
      for (const OutputKind kind : {OutputKind::kProjectedQ, OutputKind::kProjectedK, OutputKind::kProjectedV}) {
        const auto bytes = static_cast<std::int64_t>(tiled.tensors[static_cast<std::size_t>(kind)].size());
        for (std::int64_t index = 0; index < bytes / 4; ++index) {
          ASSERT_NEAR(At(tiled, kind, DType::kFloat32, index), At(truth, kind, DType::kFloat32, index), 1e-5) << index;
        }
      }
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
  const DenseAnswer empty = Answer(no_keys);
  EXPECT_EQ(empty.tensors[1], std::vector<std::byte>(2 * 3 * 4));
  EXPECT_TRUE(empty.tensors[static_cast<std::size_t>(OutputKind::kWeights)].empty());
  EXPECT_EQ(At(empty, OutputKind::kLse, DType::kFloat32, 1), -kInfinity);
  EXPECT_TRUE(Answer(RandomInputs({1, 1, 1, 0, 4, 2, 3}, store, generator)).tensors[1].empty());
  EXPECT_TRUE(Answer(RandomInputs({0, 2, 1, 3, 4, 2, 3}, store, generator)).tensors[1].empty());
}

TEST(AttentionTest, StopsWhenCancelled) {
  std::mt19937 generator(11);
  TensorStore store;
  const Problem problem = Create(RandomInputs({1, 8, 8, 2048, 2048, 64, 64}, store, generator));
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
