#include "core/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "tests/core/inputs.h"
#include "tests/core/random_problem.h"

namespace attnd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr float kInfinityF = std::numeric_limits<float>::infinity();

// Every row of a problem, dense: [B, Hq, Nq, ...].
struct Answer {
  std::vector<double> output, lse;
  std::vector<float> weights;
  std::vector<float> scores[4];
};

Answer Compute(ProblemInputs inputs) {
  inputs.options.reference = true;
  absl::StatusOr<Problem> created = Problem::Create(inputs, {});
  EXPECT_TRUE(created.ok()) << created.status();
  if (!created.ok()) return {};
  const Problem& p = *created;
  EXPECT_TRUE(p.CheckContents().ok());
  Reference reference(p);
  std::vector<std::byte> scratch(Reference::ScratchBytes(p));
  for (std::int64_t unit = 0; unit < reference.prepare_units(); ++unit) {
    Reference::Progress at;
    EXPECT_TRUE(reference.Prepare(unit, scratch.data(), at, nullptr));
  }
  const std::int64_t rows = p.batch * p.q_heads * p.q_rows;
  Answer answer{
      std::vector<double>(rows * p.d_v, 7), std::vector<double>(rows, 7), std::vector<float>(rows * p.kv_rows, 7), {}};
  for (auto& scores : answer.scores) scores.assign(rows * p.kv_rows, 7);
  for (std::int64_t n = 0; n < rows; ++n) {
    ReferenceRow row{&answer.output[n * p.d_v], answer.weights.data() + n * p.kv_rows, &answer.lse[n], {}};
    for (int step = 0; step < 4; ++step) row.scores[step] = answer.scores[step].data() + n * p.kv_rows;
    const std::int64_t b = n / (p.q_heads * p.q_rows), h = n / p.q_rows % p.q_heads, i = n % p.q_rows;
    Reference::Progress at;
    EXPECT_TRUE(reference.Row(b, h, i, row, scratch.data(), at, nullptr));
  }
  return answer;
}

// Equal infinities, NaN with NaN, else within a relative tolerance (absolute under 1e-300).
void ExpectClose(double actual, double expected, double tolerance, const std::string& where) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << where;
  } else if (std::isinf(expected)) {
    EXPECT_EQ(actual, expected) << where;
  } else {
    EXPECT_NEAR(actual, expected, tolerance * std::abs(expected) + 1e-300) << where;
  }
}

template <typename T>
void ExpectAll(const std::vector<T>& actual, const std::vector<double>& expected, double tolerance,
               const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size()) << where;
  for (std::size_t n = 0; n < actual.size(); ++n)
    ExpectClose(actual[n], expected[n], tolerance, where + " at " + std::to_string(n));
}

// One sequence, one head.
ProblemInputs Plain(TensorStore& store, std::int64_t d_k, const std::vector<double>& q, const std::vector<double>& k,
                    std::int64_t d_v, const std::vector<double>& v) {
  const auto rows = [](const std::vector<double>& values, std::int64_t width) {
    return static_cast<std::int64_t>(values.size()) / width;
  };
  ProblemInputs inputs;
  inputs.q = store.Floats({1, 1, rows(q, d_k), d_k}, q);
  inputs.k = store.Floats({1, 1, rows(k, d_k), d_k}, k);
  inputs.v = store.Floats({1, 1, rows(v, d_v), d_v}, v);
  return inputs;
}

// A nested list of numbers, where infinities are strings.
struct Nested {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};

double Number(const nlohmann::json& json) {
  if (!json.is_string()) return json.get<double>();
  const std::string text = json.get<std::string>();
  EXPECT_TRUE(text == "inf" || text == "-inf" || text == "nan") << text;
  return text == "inf" ? kInfinity : text == "-inf" ? -kInfinity : kNaN;
}

void Flatten(const nlohmann::json& json, std::size_t depth, Nested& out) {
  if (!json.is_array()) return out.values.push_back(Number(json));
  if (out.shape.size() == depth) out.shape.push_back(static_cast<std::int64_t>(json.size()));
  for (const auto& element : json) Flatten(element, depth + 1, out);
}

Nested Flat(const nlohmann::json& json) {
  Nested nested;
  Flatten(json, 0, nested);
  return nested;
}

ProblemInputs InputsOf(const nlohmann::json& test, TensorStore& store) {
  const DType dtype = test["id"] == "H1" ? DType::kFloat16 : DType::kFloat64;
  ProblemInputs inputs;
  const auto tensor = [&](const char* name) {
    Nested nested = Flat(test[name]);
    return store.Floats(nested.shape, nested.values, dtype);
  };
  inputs.q = tensor("Q");
  inputs.k = tensor("K");
  inputs.v = tensor("V");
  inputs.options.output_dtype = DType::kFloat64;
  OptionInputs& options = inputs.options;
  for (const auto& [name, value] : test["params"].items()) {
    if (name == "causal") {
      options.causal = true;
      if (value == "tl") options.q_offset.assign(static_cast<std::size_t>(inputs.q->shape[0]), 0);
      continue;
    }
    const Nested nested = Flat(value);
    const double first = nested.values.at(0);
    if (name == "scale") {
      options.scale = first;
    } else if (name == "mask") {
      options.mask = store.Bools(nested.shape, {nested.values.begin(), nested.values.end()});
    } else if (name == "bias") {
      options.bias = store.Floats(nested.shape, nested.values);
    } else if (name == "kv_len") {
      options.kv_len.assign(nested.values.begin(), nested.values.end());
    } else if (name == "left") {
      options.window_left = static_cast<std::int64_t>(first);
    } else if (name == "right") {
      options.window_right = static_cast<std::int64_t>(first);
    } else if (name == "softcap") {
      options.softcap = first;
    } else if (name == "slopes") {
      options.alibi_slopes.assign(nested.values.begin(), nested.values.end());
    } else if (name == "sinks") {
      options.sinks.assign(nested.values.begin(), nested.values.end());
    } else {
      ADD_FAILURE() << "unknown parameter " << name;
    }
  }
  return inputs;
}

std::string ReadFile(const std::string& name) {
  std::ifstream file(std::string(ATTND_SOURCE_DIR) + "/tests/conformance/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Reference, GivesTheRightValuesOfEveryConformanceCase) {
  const nlohmann::json cases = nlohmann::json::parse(ReadFile("attention_cases.json"))["cases"];
  int seen = 0;
  for (const auto& test : cases) {
    if (test["status"] != "ok") continue;
    ++seen;
    const std::string id = test["id"];
    TensorStore store;
    const Answer answer = Compute(InputsOf(test, store));
    ExpectAll(answer.output, Flat(test["expect"]["O"]).values, 1e-14, id + " O");
    ExpectAll(answer.lse, Flat(test["expect"]["LSE"]).values, 1e-14, id + " LSE");
    // Weights are float32: one rounding, or one step of its smallest subnormal.
    const std::vector<double> weights = Flat(test["expect"]["W"]).values;
    ASSERT_EQ(answer.weights.size(), weights.size()) << id;
    for (std::size_t n = 0; n < weights.size(); ++n) {
      EXPECT_NEAR(answer.weights[n], weights[n], std::ldexp(weights[n], -24) + 1e-45) << id << " W at " << n;
    }
  }
  EXPECT_EQ(seen, 27);
}

TEST(Reference, LessonOfThreeTokensToThePrintedDigits) {
  TensorStore store;
  const Answer answer = Compute(Plain(store, 4, {1, 0, .5, 1}, {1, 0, .8, 1, 0, 1, .2, 0, .2, .2, .4, .1}, 4,
                                      {.9, .1, .7, .8, .1, .9, .2, .1, .3, .3, .5, .2}));
  const auto printed = [](const auto& values, int digits) {
    std::ostringstream text;
    text.setf(std::ios::fixed);
    text.precision(digits);
    for (const auto value : values) text << value << ' ';
    return text.str();
  };
  EXPECT_EQ(printed(answer.scores[0], 2), "2.40 0.10 0.50 ");
  EXPECT_EQ(printed(answer.scores[1], 2), "1.20 0.05 0.25 ");
  EXPECT_EQ(printed(answer.weights, 4), "0.5871 0.1859 0.2270 ");
  EXPECT_EQ(printed(answer.output, 4), "0.6151 0.2941 0.5616 0.5337 ");
}

// One array of an uncompressed .npz of float64 arrays: its .npy header ends in a line break, the values follow.
std::vector<double> FromNpz(const std::string& npz, const std::string& name, std::size_t count) {
  const std::size_t entry = npz.find(name + ".npy");
  const std::size_t magic = npz.find("\x93NUMPY", entry);
  const std::size_t begin = npz.find('\n', magic) + 1;
  EXPECT_NE(npz.substr(magic, begin - magic).find("'descr': '<f8', 'fortran_order': False"), std::string::npos) << name;
  std::vector<double> values(count);
  EXPECT_LE(begin + count * sizeof(double), npz.size());
  std::memcpy(values.data(), npz.data() + begin, count * sizeof(double));
  return values;
}

TEST(Reference, LessonOfFiveTokensFromXAndWeights) {
  const std::string npz = ReadFile("lesson_five_tokens.npz");
  const std::vector<double> w_q = FromNpz(npz, "W_Q", 64 * 64);
  for (const bool transposed : {false, true}) {
    TensorStore store;
    ProblemInputs inputs;
    inputs.x = store.Floats({1, 5, 64}, FromNpz(npz, "X", 5 * 64));
    ProjectionInputs& projection = inputs.projection.emplace();
    projection.q_heads = projection.kv_heads = 1;
    projection.weights_transposed = transposed;
    const auto weight = [&](const char* name) {
      std::vector<double> values = FromNpz(npz, name, 64 * 64);
      for (int m = 0; transposed && m < 64; ++m) {
        for (int n = 0; n < m; ++n) std::swap(values[m * 64 + n], values[n * 64 + m]);
      }
      return store.Floats({64, 64}, values);
    };
    projection.w_q = weight("W_Q");
    projection.w_k = weight("W_K");
    projection.w_v = weight("W_V");
    const Answer answer = Compute(inputs);
    // The arrays were made by another order of summation, so their last bits differ.
    const std::vector<double> output = FromNpz(npz, "O", 5 * 64), weights = FromNpz(npz, "W", 25),
                              lse = FromNpz(npz, "LSE", 5);
    for (std::size_t n = 0; n < output.size(); ++n) EXPECT_NEAR(answer.output[n], output[n], 1e-15) << n;
    ExpectAll(answer.weights, weights, 6e-8, "W");
    ExpectAll(answer.lse, lse, 1e-14, "LSE");
  }
}

TEST(Reference, NoKeysMakeEmptyRows) {
  TensorStore store;
  const Answer answer = Compute(Plain(store, 2, {1, 2, 3, 4}, {}, 3, {}));
  EXPECT_EQ(answer.output, std::vector<double>(6, 0));
  EXPECT_EQ(answer.lse, std::vector<double>(2, -kInfinity));
  EXPECT_TRUE(answer.weights.empty());
}

TEST(Reference, EqualKeysGiveTheLogOfTheirNumber) {
  for (const std::int64_t keys : {1, 9, 33, 63, 64, 65, 127, 129, 255, 257, 513}) {
    TensorStore store;
    ProblemInputs inputs =
        Plain(store, 4, {0, 0, 0, 0}, std::vector<double>(keys * 4), 1, std::vector<double>(keys, 1));
    inputs.options.softcap = 2;
    const Answer answer = Compute(inputs);
    EXPECT_EQ(answer.output[0], 1);
    EXPECT_NEAR(answer.lse[0], std::log(static_cast<double>(keys)), 1e-14);
  }
}

TEST(Reference, BatchIndexPastSixteenBits) {
  constexpr std::int64_t kBatch = 70000;
  TensorStore store;
  std::vector<double> values(kBatch);
  for (std::int64_t b = 0; b < kBatch; ++b) values[b] = static_cast<double>(b);
  ProblemInputs inputs;
  inputs.q = store.Filled({kBatch, 1, 1, 1}, 1);
  inputs.k = store.Filled({kBatch, 1, 1, 1}, 1);
  inputs.v = store.Floats({kBatch, 1, 1, 1}, values);
  EXPECT_EQ(Compute(inputs).output, values);
}

TEST(Reference, ExcludedKeysAndValuesNeverMatter) {
  TensorStore store;
  ProblemInputs masked = Plain(store, 1, {1}, {1, kNaN}, 1, {10, kNaN});
  masked.options.mask = store.Bools({2}, {1, 0});
  Answer answer = Compute(masked);
  EXPECT_EQ(answer.output[0], 10);
  EXPECT_EQ(answer.lse[0], 1);
  EXPECT_EQ(answer.weights, (std::vector<float>{1, 0}));
  for (const auto& scores : answer.scores) EXPECT_EQ(scores, (std::vector<float>{1, -kInfinityF}));

  ProblemInputs beyond = Plain(store, 1, {1}, {1, kNaN}, 1, {10, kInfinity});
  beyond.options.kv_len = {1};
  EXPECT_EQ(Compute(beyond).output[0], 10);
  ProblemInputs biased = Plain(store, 1, {1}, {1, kNaN}, 1, {10, kNaN});
  biased.options.bias = store.Floats({1, 2}, {0, -kInfinity});
  EXPECT_EQ(Compute(biased).output[0], 10);
  ProblemInputs future = Plain(store, 1, {1}, {1, kNaN}, 1, {10, kNaN});
  future.options.causal = true;
  future.options.q_offset = {0};
  EXPECT_EQ(Compute(future).output[0], 10);
}

TEST(Reference, NaNTouchesItsOwnRowOrColumn) {
  TensorStore store;
  ProblemInputs inputs = Plain(store, 1, {kNaN, 1}, {1, 2}, 1, {10, 20});
  inputs.options.scale = 1;
  Answer answer = Compute(inputs);
  EXPECT_TRUE(std::isnan(answer.output[0]));
  EXPECT_TRUE(std::isnan(answer.lse[0]));
  EXPECT_TRUE(std::isnan(answer.weights[0]));
  EXPECT_NEAR(answer.output[1], 17.31058578630005, 1e-13);

  answer = Compute(Plain(store, 1, {1}, {1, kNaN, 1}, 1, {1, 2, 3}));  // an allowed NaN before a larger logit stays
  EXPECT_TRUE(std::isnan(answer.output[0]));
  answer = Compute(Plain(store, 1, {0}, {1, 1}, 3, {1, kNaN, 5, 3, 4, kInfinity}));
  EXPECT_EQ(answer.output[0], 2);
  EXPECT_TRUE(std::isnan(answer.output[1]));
  EXPECT_EQ(answer.output[2], kInfinity);
  EXPECT_EQ(answer.weights, (std::vector<float>{0.5, 0.5}));
}

TEST(Reference, EveryNaNComesOutCanonical) {
  TensorStore store;
  const Answer answer = Compute(Plain(store, 1, {-kNaN}, {1}, 1, {1}));
  EXPECT_EQ(std::bit_cast<std::uint64_t>(answer.output[0]), 0x7FF8000000000000u);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(answer.lse[0]), 0x7FF8000000000000u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(answer.weights[0]), 0x7FC00000u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(answer.scores[3][0]), 0x7FC00000u);
}

TEST(Reference, InfiniteLogits) {
  TensorStore store;
  EXPECT_TRUE(std::isnan(Compute(Plain(store, 1, {1}, {kInfinity, 0}, 1, {1, 1})).output[0]));
  EXPECT_TRUE(std::isnan(Compute(Plain(store, 1, {1}, {-kInfinity, -kInfinity}, 1, {1, 1})).output[0]));
  const Answer answer = Compute(Plain(store, 1, {1}, {-kInfinity, 0}, 1, {3, 5}));  // one of them is just weight 0
  EXPECT_EQ(answer.output[0], 5);
  EXPECT_EQ(answer.lse[0], 0);
}

TEST(Reference, RowBeyondQLenComesBeforeEmptyRowBeforeNaN) {
  TensorStore store;
  ProblemInputs inputs = Plain(store, 1, {kNaN, kNaN, kNaN}, {1}, 1, {5});
  inputs.options.q_len = {2};
  inputs.options.mask = store.Bools({3, 1}, {1, 0, 1});
  inputs.options.sinks = {2.5};
  const Answer answer = Compute(inputs);
  EXPECT_TRUE(std::isnan(answer.output[0]));
  EXPECT_EQ(answer.output[1], 0);
  EXPECT_EQ(answer.lse[1], 2.5);  // an empty row with a sink
  EXPECT_EQ(answer.output[2], 0);
  EXPECT_EQ(answer.lse[2], -kInfinity);  // beyond q_len there is no sink
  EXPECT_EQ(answer.weights[1], 0);
}

TEST(Reference, SinkTakesWeightOnceAndIsNeitherScaledNorCapped) {
  TensorStore store;
  ProblemInputs inputs = Plain(store, 1, {0}, {1, 1, 1}, 1, {8, 8, 8});
  inputs.options.sinks = {static_cast<float>(std::log(5.0))};
  inputs.options.scale = 100;
  inputs.options.softcap = 0.1;
  Answer answer = Compute(inputs);
  EXPECT_NEAR(answer.output[0], 3, 1e-6);  // 3 keys of weight 1/8
  EXPECT_NEAR(answer.weights[0], 0.125, 1e-7);
  EXPECT_NEAR(answer.lse[0], std::log(8.0), 1e-7);
  inputs.options.sinks = {-kInfinityF};
  EXPECT_EQ(Compute(inputs).output[0], 8);
  inputs.options.mask = store.Bools({1}, {0});
  EXPECT_EQ(Compute(inputs).lse[0], -kInfinity);
}

TEST(Reference, BothLayoutsGiveTheSame) {
  TensorStore store;
  ProblemInputs inputs;  // B 1, N 2, H 2, d 1
  inputs.options.layout = Layout::kBNHD;
  inputs.q = store.Floats({1, 2, 2, 1}, {1, 5, 2, 6});
  inputs.k = store.Floats({1, 2, 2, 1}, {1, 3, 2, 4});
  inputs.v = store.Floats({1, 2, 2, 1}, {10, 30, 20, 40});
  ProblemInputs other;
  other.q = store.Floats({1, 2, 2, 1}, {1, 2, 5, 6});
  other.k = store.Floats({1, 2, 2, 1}, {1, 2, 3, 4});
  other.v = store.Floats({1, 2, 2, 1}, {10, 20, 30, 40});
  const Answer answer = Compute(inputs);
  EXPECT_EQ(answer.output, Compute(other).output);
  EXPECT_NEAR(answer.output[0], 17.31058578630005, 1e-13);
}

// Partial answers over disjoint keys merge by their LSE into the whole.
TEST(Reference, LseMergesPartialAnswers) {
  TensorStore store;
  const auto part = [&](const std::vector<double>& k, const std::vector<double>& v) {
    ProblemInputs inputs = Plain(store, 1, {1}, k, 1, v);
    inputs.options.scale = 1;
    return Compute(inputs);
  };
  const Answer one = part({1}, {10}), two = part({2}, {20});
  const double w1 = std::exp(one.lse[0]), w2 = std::exp(two.lse[0]);
  EXPECT_NEAR((w1 * one.output[0] + w2 * two.output[0]) / (w1 + w2), 17.31058578630005, 1e-13);
  EXPECT_NEAR(std::log(w1 + w2), part({1, 2}, {10, 20}).lse[0], 1e-15);
}

// A turn by p against a turn by j leaves the angle between them: cos((p - j) * theta) for each pair.
TEST(Reference, RotaryScoresDependOnRelativePositions) {
  for (const RotaryStyle style : {RotaryStyle::kHalf, RotaryStyle::kInterleaved}) {
    TensorStore store;
    const bool half = style == RotaryStyle::kHalf;
    // Only the first coordinate of the second pair, which turns by base^(-2/4), and one that does not turn.
    std::vector<double> e(5);
    e[half ? 1 : 2] = 1;
    e[4] = 10;
    std::vector<double> q, k;
    for (int n = 0; n < 3; ++n) q.insert(q.end(), e.begin(), e.end());
    for (int n = 0; n < 4; ++n) k.insert(k.end(), e.begin(), e.end());
    ProblemInputs inputs = Plain(store, 5, q, k, 1, {1, 2, 3, 4});
    inputs.options.scale = 1;
    RotaryInputs& rotary = inputs.options.rotary.emplace();
    rotary.style = style;
    rotary.rotary_dim = 4;
    const Answer by_default = Compute(inputs);  // p = i + 1, base 10000: theta = 0.01
    rotary.rope_base = 4;                       // theta = 1/2
    rotary.q_positions = store.Ints({1, 3}, {7, -2, 1000000});
    rotary.k_positions = store.Ints({1, 4}, {0, 3, -5, 999999});
    const Answer by_position = Compute(inputs);
    const double q_positions[] = {7, -2, 1000000}, k_positions[] = {0, 3, -5, 999999};
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 4; ++j) {
        EXPECT_NEAR(by_default.scores[0][i * 4 + j], 100 + std::cos(0.01 * (i + 1 - j)), 1e-5);
        EXPECT_NEAR(by_position.scores[0][i * 4 + j], 100 + std::cos((q_positions[i] - k_positions[j]) / 2), 1e-5);
      }
    }
  }
}

TEST(Reference, RotaryTurnsCounterclockwiseInItsOwnPairs) {
  TensorStore store;
  // A quarter turn of q alone (k stands at 0): (1, 0) becomes (0, 1) in the first pair.
  for (const RotaryStyle style : {RotaryStyle::kHalf, RotaryStyle::kInterleaved}) {
    const int second = style == RotaryStyle::kHalf ? 2 : 1;
    std::vector<double> q = {1, 0, 0, 0}, k(16);
    for (int n = 0; n < 4; ++n) k[n * 5] = 1;  // key n reads coordinate n
    ProblemInputs inputs = Plain(store, 4, q, k, 1, {0, 0, 0, 0});
    inputs.options.scale = 1;
    RotaryInputs& rotary = inputs.options.rotary.emplace();
    rotary.style = style;
    rotary.rotary_dim = 4;
    rotary.q_positions = store.Ints({1, 1}, {1});
    rotary.k_positions = store.Ints({1, 4}, {0, 0, 0, 0});
    const Answer answer = Compute(inputs);
    for (int n = 0; n < 4; ++n) {
      const double expected = n == 0 ? std::cos(1.0) : n == second ? std::sin(1.0) : 0;
      EXPECT_NEAR(answer.scores[0][n], expected, 1e-7) << n;
    }
  }
}

TEST(Reference, ProjectsByRowTimesMatrixWithBiasAndOut) {
  TensorStore store;
  ProblemInputs inputs;
  inputs.options.reference = true;
  inputs.x = store.Floats({1, 1, 2}, {1, 2});
  ProjectionInputs& projection = inputs.projection.emplace();
  projection.q_heads = 2;
  projection.kv_heads = 1;
  projection.w_q = store.Floats({2, 2}, {1, 2, 3, 4}, DType::kFloat32);  // two heads of one column
  projection.w_k = store.Floats({2, 1}, {1, 1}, DType::kBFloat16);
  projection.w_v = store.Floats({2, 3}, {1, 0, 2, 0, 1, 1});
  projection.b_v = store.Floats({3}, {0.5, 0, -1}, DType::kFloat16);
  projection.w_o = store.Floats({6, 2}, {1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 10});
  projection.b_o = store.Floats({2}, {100, 0});
  const Problem problem = Problem::Create(inputs, {}).value();
  Reference reference(problem);
  std::vector<std::byte> scratch(Reference::ScratchBytes(problem));
  ASSERT_EQ(reference.prepare_units(), 1);
  Reference::Progress prepared;
  ASSERT_TRUE(reference.Prepare(0, scratch.data(), prepared, nullptr));
  EXPECT_EQ(*reference.Projected(OutputKind::kProjectedQ, 0, 0, 0), 7);  // and not 5, which W x would be
  EXPECT_EQ(*reference.Projected(OutputKind::kProjectedQ, 0, 1, 0), 10);
  EXPECT_EQ(*reference.Projected(OutputKind::kProjectedK, 0, 0, 0), 3);
  const double* v = reference.Projected(OutputKind::kProjectedV, 0, 0, 0);
  EXPECT_EQ(std::vector<double>(v, v + 3), (std::vector<double>{1.5, 2, 3}));

  std::vector<double> heads(6), out(2);
  for (std::int64_t h = 0; h < 2; ++h) {
    ReferenceRow row;
    row.output = &heads[h * 3];
    Reference::Progress at;
    ASSERT_TRUE(reference.Row(0, h, 0, row, scratch.data(), at, nullptr));
  }
  EXPECT_EQ(heads, (std::vector<double>{1.5, 2, 3, 1.5, 2, 3}));
  Reference::Progress at;
  ASSERT_TRUE(reference.ProjectOut(heads.data(), out.data(), scratch.data(), at, nullptr));
  EXPECT_EQ(out, (std::vector<double>{100 + 1.5 + 3, 2 + 30}));
}

TEST(Reference, LengthsOfXCutRowsAndKeys) {
  TensorStore store;
  ProblemInputs inputs;
  inputs.x = store.Floats({1, 3, 1}, {1, 2, kNaN});
  ProjectionInputs& projection = inputs.projection.emplace();
  projection.q_heads = projection.kv_heads = 1;
  projection.w_q = projection.w_k = store.Floats({1, 1}, {0});
  projection.w_v = store.Floats({1, 1}, {10});
  inputs.options.lengths = {2};
  inputs.options.causal = true;
  const Answer answer = Compute(inputs);
  EXPECT_EQ(answer.output, (std::vector<double>{10, 15, 0}));
  EXPECT_EQ(answer.lse, (std::vector<double>{0, std::log(2.0), -kInfinity}));
}

TEST(Reference, StopsWhenAskedTo) {
  TensorStore store;
  const std::int64_t keys = 1 << 16;
  ProblemInputs inputs;
  inputs.options.reference = true;
  inputs.q = store.Filled({1, 1, 1, 16}, 1);
  inputs.k = store.Filled({1, 1, keys, 16}, 1);
  inputs.v = store.Filled({1, 1, keys, 1}, 1);
  const Problem problem = Problem::Create(inputs, {}).value();
  const Reference reference(problem);
  std::vector<std::byte> scratch(Reference::ScratchBytes(problem));
  double output = 0;
  ReferenceRow row;
  row.output = &output;
  Reference::Progress whole, stopped;
  int asked = 0;
  EXPECT_TRUE(reference.Row(0, 0, 0, row, scratch.data(), whole, [&] { return ++asked == 0; }));
  EXPECT_GE(asked, 16);  // 2^20 multiply-adds of scores alone
  EXPECT_EQ(output, 1);
  int left = 2;
  EXPECT_FALSE(reference.Row(0, 0, 0, row, scratch.data(), stopped, [&] { return --left == 0; }));
  EXPECT_EQ(left, 0);
}

// Calls until it is done, interrupted whenever it asks. Returns the number of calls.
template <class Call>
int CallUntilDone(Call call) {
  Reference::Progress at;
  int calls = 1;
  while (!call(at, [] { return true; })) ++calls;
  return calls;
}

TEST(Reference, ARowGoesOnWhereItWasInterrupted) {
  std::mt19937 generator(5);
  TensorStore store;
  const std::int64_t keys = 20000;
  ProblemInputs inputs = RandomInputs({1, 2, 1, 2, keys, 24, 20}, store, generator);
  std::vector<int> mask(keys);
  for (std::size_t n = 0; n < mask.size(); ++n) mask[n] = n % 5 != 0;
  inputs.options.mask = store.Bools({keys}, mask);
  inputs.options.softcap = 2;
  inputs.options.window_left = keys - 3000;
  inputs.options.q_offset = {keys - 700};
  inputs.options.sinks = {0.5F, -1};
  inputs.options.rotary.emplace().rotary_dim = 24;
  const Problem problem = Problem::Create(inputs, {}).value();
  Reference reference(problem);
  std::vector<std::byte> scratch(Reference::ScratchBytes(problem));
  for (std::int64_t unit = 0; unit < reference.prepare_units(); ++unit) {
    Reference::Progress at;
    ASSERT_TRUE(reference.Prepare(unit, scratch.data(), at, nullptr));
  }
  struct Dense {
    explicit Dense(std::int64_t row_keys) : weights(row_keys, 7) {
      row.output = output;
      row.lse = &lse;
      row.weights = weights.data();
      for (int step = 0; step < 4; ++step) {
        scores[step].assign(row_keys, 7);
        row.scores[step] = scores[step].data();
      }
    }
    double output[20] = {}, lse = 0;
    std::vector<float> weights, scores[4];
    ReferenceRow row;
  };
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  for (std::int64_t n = 0; n < 4; ++n) {
    Dense whole(keys), parts(keys);
    Reference::Progress at;
    ASSERT_TRUE(reference.Row(0, n / 2, n % 2, whole.row, scratch.data(), at, nullptr));
    std::vector<std::byte> own_scratch(Reference::ScratchBytes(problem));
    const int calls = CallUntilDone([&](Reference::Progress& progress, const Reference::Interrupt& interrupt) {
      return reference.Row(0, n / 2, n % 2, parts.row, own_scratch.data(), progress, interrupt);
    });
    EXPECT_GE(calls, 10);
    EXPECT_EQ(std::memcmp(parts.output, whole.output, sizeof(whole.output)), 0);
    EXPECT_EQ(parts.lse, whole.lse);
    EXPECT_TRUE(same(parts.weights, whole.weights));
    for (int step = 0; step < 4; ++step) EXPECT_TRUE(same(parts.scores[step], whole.scores[step])) << step;
  }
}

TEST(Reference, AProductGoesOnWhereItWasInterrupted) {
  std::mt19937 generator(6);
  for (const bool transposed : {false, true}) {
    TensorStore store;
    const std::int64_t d_model = 500, width = 600, d_out = 400;
    ProblemInputs inputs;
    inputs.options.reference = true;
    inputs.x = store.Floats({1, 1, d_model}, Normal(d_model, generator), DType::kFloat32);
    ProjectionInputs& projection = inputs.projection.emplace();
    projection.q_heads = projection.kv_heads = 1;
    projection.weights_transposed = transposed;
    const auto matrix = [&](std::int64_t in, std::int64_t out) {
      return store.Floats(transposed ? std::vector{out, in} : std::vector{in, out}, Normal(in * out, generator),
                          DType::kFloat32);
    };
    projection.w_q = matrix(d_model, width);
    projection.w_k = matrix(d_model, width);
    projection.w_v = matrix(d_model, width);
    projection.w_o = matrix(width, d_out);
    projection.b_k = store.Floats({width}, Normal(width, generator), DType::kFloat32);
    projection.b_o = store.Floats({d_out}, Normal(d_out, generator), DType::kFloat32);
    const Problem problem = Problem::Create(inputs, {}).value();
    Reference whole(problem), parts(problem);
    std::vector<std::byte> scratch(Reference::ScratchBytes(problem));
    Reference::Progress at;
    ASSERT_TRUE(whole.Prepare(0, scratch.data(), at, nullptr));
    EXPECT_GE(CallUntilDone([&](Reference::Progress& progress, const Reference::Interrupt& interrupt) {
                return parts.Prepare(0, scratch.data(), progress, interrupt);
              }),
              10);
    for (const OutputKind kind : {OutputKind::kProjectedQ, OutputKind::kProjectedK, OutputKind::kProjectedV}) {
      EXPECT_EQ(std::memcmp(parts.Projected(kind, 0, 0, 0), whole.Projected(kind, 0, 0, 0), width * sizeof(double)), 0);
    }
    const std::vector<double> heads = Normal(width, generator);
    std::vector<double> out(d_out), out_in_parts(d_out);
    Reference::Progress out_at;
    ASSERT_TRUE(whole.ProjectOut(heads.data(), out.data(), scratch.data(), out_at, nullptr));
    EXPECT_GE(CallUntilDone([&](Reference::Progress& progress, const Reference::Interrupt& interrupt) {
                return parts.ProjectOut(heads.data(), out_in_parts.data(), scratch.data(), progress, interrupt);
              }),
              3);
    EXPECT_EQ(out_in_parts, out);
  }
}

// Every option at once on random problems, against the definition written another way: all weights unnormalised, from
// logits made key by key, in long double.
TEST(Reference, AgreesWithTheDefinitionOverRandomOptions) {
  std::mt19937 random(20);
  std::normal_distribution<double> normal;
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 300; ++round) {
    const std::int64_t batch = pick(1, 2), kv_heads = pick(1, 2), group = pick(1, 3), rows = pick(1, 6),
                       keys = pick(1, 9);
    const std::int64_t heads = kv_heads * group, d = pick(1, 5), d_v = pick(1, 3);
    const auto values = [&](std::int64_t count) {
      std::vector<double> out(static_cast<std::size_t>(count));
      for (double& value : out) value = normal(random);
      return out;
    };
    const std::vector<double> q = values(batch * heads * rows * d), k = values(batch * kv_heads * keys * d);
    const std::vector<double> v = values(batch * kv_heads * keys * d_v), bias = values(heads * rows * keys);
    std::vector<int> mask(static_cast<std::size_t>(batch * rows * keys));
    for (int& allowed : mask) allowed = pick(0, 3) > 0;
    TensorStore store;
    ProblemInputs inputs;
    inputs.q = store.Floats({batch, heads, rows, d}, q);
    inputs.k = store.Floats({batch, kv_heads, keys, d}, k);
    inputs.v = store.Floats({batch, kv_heads, keys, d_v}, v);
    OptionInputs& options = inputs.options;
    if (pick(0, 1)) options.scale = normal(random);
    if (pick(0, 1)) options.softcap = 0.5 + pick(0, 3);
    if (pick(0, 1)) options.mask = store.Bools({batch, 1, rows, keys}, mask);
    if (pick(0, 1)) options.bias = store.Floats({heads, rows, keys}, bias);
    if (pick(0, 1)) options.window_left = pick(0, 4);
    if (pick(0, 1)) options.window_right = pick(0, 4);
    options.causal = pick(0, 1) != 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      options.q_offset.push_back(pick(-3, 8));
      options.kv_len.push_back(pick(0, static_cast<int>(keys)));
      options.q_len.push_back(pick(0, static_cast<int>(rows)));
    }
    if (pick(0, 1)) {
      for (std::int64_t h = 0; h < heads; ++h) options.alibi_slopes.push_back(static_cast<float>(normal(random)));
    }
    if (pick(0, 1)) {
      for (std::int64_t h = 0; h < heads; ++h) options.sinks.push_back(static_cast<float>(normal(random)));
    }
    const Answer answer = Compute(inputs);

    for (std::int64_t n = 0; n < batch * heads * rows; ++n) {
      const std::int64_t b = n / (heads * rows), h = n / rows % heads, i = n % rows, p = i + options.q_offset[b];
      std::vector<long double> unnormalised(keys, 0), sum(d_v, 0);
      const bool beyond = i >= options.q_len[b];
      long double total = !beyond && !options.sinks.empty() ? std::exp(static_cast<long double>(options.sinks[h])) : 0;
      bool any = false;
      for (std::int64_t j = 0; j < keys; ++j) {
        if (beyond || j >= options.kv_len[b] || (options.causal && j > p)) continue;
        if (options.window_left && p - j > *options.window_left) continue;
        if (options.window_right && j - p > *options.window_right) continue;
        if (options.mask && mask[(b * rows + i) * keys + j] == 0) continue;
        any = true;
        const std::int64_t kv_row = (b * kv_heads + h / group) * keys + j;
        long double s = 0;
        for (std::int64_t t = 0; t < d; ++t) s += static_cast<long double>(q[n * d + t]) * k[kv_row * d + t];
        s *= options.scale ? *options.scale : 1 / std::sqrt(static_cast<long double>(d));
        if (options.softcap) s = *options.softcap * std::tanh(s / *options.softcap);
        if (!options.alibi_slopes.empty())
          s -= static_cast<long double>(options.alibi_slopes[h]) * (p > j ? p - j : j - p);
        if (options.bias) s += bias[(h * rows + i) * keys + j];
        EXPECT_NEAR(answer.scores[3][n * keys + j], static_cast<double>(s),
                    1e-6 * (1 + std::abs(static_cast<double>(s))));
        unnormalised[j] = std::exp(s);
        total += unnormalised[j];
        for (std::int64_t t = 0; t < d_v; ++t) sum[t] += unnormalised[j] * v[kv_row * d_v + t];
      }
      const std::string where = "round " + std::to_string(round) + " row " + std::to_string(n);
      const double lse = static_cast<double>(std::log(total));
      if (std::isinf(lse)) {
        EXPECT_EQ(answer.lse[n], lse) << where;
      } else {
        EXPECT_NEAR(answer.lse[n], lse, 1e-12) << where;
      }
      for (std::int64_t j = 0; j < keys; ++j) {
        const double weight = any ? static_cast<double>(unnormalised[j] / total) : 0;
        EXPECT_NEAR(answer.weights[n * keys + j], weight, 1e-7 * weight) << where;
      }
      for (std::int64_t t = 0; t < d_v; ++t) {
        EXPECT_NEAR(answer.output[n * d_v + t], any ? static_cast<double>(sum[t] / total) : 0, 1e-12) << where;
      }
    }
  }
}

}  // namespace
}  // namespace attnd
