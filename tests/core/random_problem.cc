#include "tests/core/random_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace attnd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One of a few.
template <class T>
T OneOf(const Pick& pick, std::initializer_list<T> values) {
  return values.begin()[pick(0, static_cast<std::int64_t>(values.size()) - 1)];
}

// True once in `times`; a source of choices that is exhausted says false.
bool Chance(const Pick& pick, std::int64_t times) { return pick(0, times - 1) == times - 1; }

DType AnyDType(const Pick& pick) {
  return Chance(pick, 2) ? OneOf(pick, {DType::kFloat16, DType::kBFloat16}) : DType::kFloat32;
}

enum class Values { kOrdinary, kLarge, kSubnormal, kNonFinite, kWhole };

// Makes the parts of one problem.
class Builder {
 public:
  Builder(const Pick& pick, const Shape& shape, TensorStore& store)
      : pick_(pick), shape_(shape), store_(store), generator_(static_cast<std::uint32_t>(pick(0, 0xFFFF))) {
    values_ = OneOf(pick, {Values::kOrdinary, Values::kOrdinary, Values::kLarge, Values::kSubnormal, Values::kNonFinite,
                           Values::kWhole});
  }

  InputTensor Floats(std::vector<std::int64_t> shape, DType dtype, double spread = 1) {
    const std::int64_t count = CheckedProduct(shape).value();
    std::vector<double> numbers = Normal(count, generator_, spread);
    for (double& number : numbers) number = values_ == Values::kWhole ? std::round(number) : number;
    if (values_ == Values::kSubnormal) Sprinkle(numbers, count / 4 + 1, {1e-40, -3e-39, 0.0, 6e-8});
    if (values_ == Values::kNonFinite && Chance(pick_, 2)) Sprinkle(numbers, 2, {kInfinity, -kInfinity, std::nan("")});
    return store_.Floats(std::move(shape), numbers, dtype);
  }

  void AddTensors(ProblemInputs& inputs) {
    inputs.options.layout = Chance(pick_, 4) ? Layout::kBNHD : Layout::kBHND;
    const auto dims = [&](std::int64_t heads, std::int64_t rows, std::int64_t width) {
      if (inputs.options.layout == Layout::kBNHD) std::swap(heads, rows);
      return std::vector<std::int64_t>{shape_.batch, heads, rows, width};
    };
    const double spread = values_ == Values::kLarge ? OneOf(pick_, {10.0, 100.0, 3000.0}) : 1;
    inputs.q = Floats(dims(shape_.q_heads, shape_.q_rows, shape_.d_k), AnyDType(pick_), spread);
    inputs.k = Floats(dims(shape_.kv_heads, shape_.kv_rows, shape_.d_k), AnyDType(pick_), spread);
    inputs.v = Floats(dims(shape_.kv_heads, shape_.kv_rows, shape_.d_v), AnyDType(pick_), spread);
  }

  // x and its projection; d_k, d_v and heads are those of the shape.
  void AddProjection(ProblemInputs& inputs) {
    const std::int64_t d_model = pick_(1, 20);
    inputs.x = Floats({shape_.batch, shape_.q_rows, d_model}, AnyDType(pick_));
    ProjectionInputs& projection = inputs.projection.emplace();
    projection.q_heads = shape_.q_heads;
    projection.kv_heads = shape_.kv_heads;
    projection.weights_transposed = Chance(pick_, 2);
    const auto weight = [&](std::int64_t in, std::int64_t out) {
      std::vector<std::int64_t> dims = {in, out};
      if (projection.weights_transposed) std::swap(dims[0], dims[1]);
      return store_.Floats(dims, Normal(in * out, generator_, 0.5), AnyDType(pick_));
    };
    const auto bias = [&](std::int64_t out) -> std::optional<InputTensor> {
      if (!Chance(pick_, 2)) return std::nullopt;
      return store_.Floats({out}, Normal(out, generator_), AnyDType(pick_));
    };
    const std::int64_t q_out = shape_.q_heads * shape_.d_k, k_out = shape_.kv_heads * shape_.d_k,
                       v_out = shape_.kv_heads * shape_.d_v;
    projection.w_q = weight(d_model, q_out);
    projection.w_k = weight(d_model, k_out);
    projection.w_v = weight(d_model, v_out);
    projection.b_q = bias(q_out);
    projection.b_k = bias(k_out);
    projection.b_v = bias(v_out);
    if (Chance(pick_, 2)) {
      const std::int64_t d_out = pick_(1, 9);
      projection.w_o = weight(shape_.q_heads * shape_.d_v, d_out);
      projection.b_o = bias(d_out);
    }
    for (const OutputKind kind : {OutputKind::kProjectedQ, OutputKind::kProjectedK, OutputKind::kProjectedV}) {
      if (Chance(pick_, 2)) inputs.outputs.push_back(kind);
    }
  }

  void AddLengths(const ProblemInputs& inputs, OptionInputs& options) {
    const bool lengths = inputs.x && Chance(pick_, 2), kv_len = !lengths && Chance(pick_, 2);
    const bool q_len = !lengths && Chance(pick_, 3);
    // Where kv_len comes alone the contract asks for one of the two others.
    const bool q_offset = Chance(pick_, 2) || (kv_len && !q_len);
    for (std::int64_t b = 0; b < shape_.batch; ++b) {
      if (lengths) options.lengths.push_back(pick_(0, shape_.q_rows));
      if (kv_len) options.kv_len.push_back(pick_(0, shape_.kv_rows));
      if (q_len) options.q_len.push_back(pick_(0, shape_.q_rows));
      if (!q_offset) continue;
      options.q_offset.push_back(Chance(pick_, 16) ? OneOf(pick_, {std::int64_t{1} << 40, -(std::int64_t{1} << 40)})
                                                   : pick_(0, shape_.kv_rows + 10) - 5);
    }
  }

  void AddMaskAndBias(OptionInputs& options) {
    if (Chance(pick_, 3)) {
      const std::vector<std::int64_t> dims = BroadcastDims();
      std::vector<int> mask(static_cast<std::size_t>(CheckedProduct(dims).value()));
      const std::uint32_t of_eight = static_cast<std::uint32_t>(OneOf(pick_, {6, 8, 0, 1}));
      for (int& byte : mask) byte = static_cast<int>(generator_() % 8 < of_eight);
      options.mask = store_.Bools(dims, mask);
    }
    if (Chance(pick_, 3)) {
      const std::vector<std::int64_t> dims = BroadcastDims();
      const std::int64_t count = CheckedProduct(dims).value();
      std::vector<double> bias = Normal(count, generator_, 3);
      if (Chance(pick_, 2)) Sprinkle(bias, count / 8 + 1, {-kInfinity});
      if (values_ == Values::kLarge) Sprinkle(bias, count / 8 + 1, {3.4e38, -3.4e38, 100});
      if (values_ == Values::kNonFinite) Sprinkle(bias, 1, {kInfinity, std::nan("")});
      options.bias = store_.Floats(dims, bias, AnyDType(pick_));
    }
  }

  void AddScores(OptionInputs& options) {
    options.causal = Chance(pick_, 2);
    if (Chance(pick_, 4)) options.window_left = pick_(0, shape_.kv_rows + 3);
    if (Chance(pick_, 4)) options.window_right = pick_(0, shape_.kv_rows + 3);
    if (Chance(pick_, 3)) options.scale = OneOf(pick_, {1.0, 0.0, -0.7, 2.5, 1e-35, 200.0, 20000.0, 1e30});
    if (Chance(pick_, 4)) options.softcap = OneOf(pick_, {3.0, 0.5, 50.0, 3e38, 1e-30, 1e39, 1e-39});
    const bool slopes = Chance(pick_, 4), sinks = Chance(pick_, 4);
    for (std::int64_t h = 0; h < shape_.q_heads; ++h) {
      if (slopes) options.alibi_slopes.push_back(0.25F * static_cast<float>(pick_(0, 4) - 1));
      if (sinks) options.sinks.push_back(OneOf(pick_, {1.5F, -2.0F, 100.0F, -100.0F, -INFINITY}));
    }
    if (shape_.d_k > 1 && Chance(pick_, 4)) AddRotary(options.rotary.emplace());
    if (Chance(pick_, 4)) options.output_dtype = OneOf(pick_, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  }

  void AddOutputs(std::vector<OutputKind>& outputs) {
    for (const OutputKind kind : {OutputKind::kWeights, OutputKind::kLse, OutputKind::kScoresDot,
                                  OutputKind::kScoresScaled, OutputKind::kScoresCapped, OutputKind::kScoresBiased}) {
      if (Chance(pick_, 2)) outputs.push_back(kind);
    }
  }

 private:
  // Rank 1 to 4, each dimension whole or 1.
  std::vector<std::int64_t> BroadcastDims() {
    const std::int64_t whole[] = {shape_.batch, shape_.q_heads, shape_.q_rows, shape_.kv_rows};
    std::vector<std::int64_t> dims(std::end(whole) - pick_(1, 4), std::end(whole));
    for (std::int64_t& dimension : dims) dimension = Chance(pick_, 4) ? 1 : dimension;
    return dims;
  }

  void AddRotary(RotaryInputs& rotary) {
    rotary.style = Chance(pick_, 2) ? RotaryStyle::kInterleaved : RotaryStyle::kHalf;
    rotary.rotary_dim = 2 * pick_(1, shape_.d_k / 2);
    if (Chance(pick_, 2)) rotary.rope_base = 500.0;
    const auto positions = [&](std::int64_t rows) -> std::optional<InputTensor> {
      if (!Chance(pick_, 3)) return std::nullopt;
      std::vector<std::int64_t> numbers(static_cast<std::size_t>(shape_.batch * rows));
      for (std::int64_t& number : numbers) number = static_cast<std::int64_t>(generator_() % 3000) - 1000;
      return store_.Ints({shape_.batch, rows}, numbers);
    };
    rotary.q_positions = positions(shape_.q_rows);
    rotary.k_positions = positions(shape_.kv_rows);
  }

  // `count` of the numbers, anywhere, become one of `special`.
  void Sprinkle(std::vector<double>& numbers, std::int64_t count, std::initializer_list<double> special) {
    for (; count > 0 && !numbers.empty(); --count) {
      numbers[generator_() % numbers.size()] = special.begin()[generator_() % special.size()];
    }
  }

  const Pick& pick_;
  const Shape& shape_;
  TensorStore& store_;
  std::mt19937 generator_;
  Values values_;
};

}  // namespace

std::vector<double> Normal(std::int64_t count, std::mt19937& generator, double spread) {
  std::normal_distribution<double> normal(0, spread);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = normal(generator);
  return values;
}

ProblemInputs RandomInputs(const Shape& s, TensorStore& store, std::mt19937& generator, DType dtype, Layout layout) {
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

Pick PickFrom(std::mt19937& generator) {
  return [&generator](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  };
}

Shape RandomShape(const Pick& pick) {
  Shape s;
  const std::int64_t edges = std::max<std::int64_t>(0, pick(0, 7) - 5);
  const std::int64_t group = pick(1, edges > 0 ? 2 : 3);
  s.kv_heads = edges > 0 ? 1 : pick(1, 2);
  s.q_heads = s.kv_heads * group;
  s.batch = edges == 0 && Chance(pick, 16) ? 0 : pick(1, s.q_heads > 2 ? 2 : 3);
  std::int64_t* const dimensions[] = {&s.q_rows, &s.kv_rows, &s.d_k, &s.d_v};
  for (std::int64_t* const dimension : dimensions) {
    *dimension = pick(1, edges > 0 ? 9 : OneOf<std::int64_t>(pick, {5, 17, 40}));
  }
  if (Chance(pick, 16)) s.q_rows = 0;
  if (Chance(pick, 16)) s.kv_rows = 0;
  for (std::int64_t edge = 0; edge < edges; ++edge) {
    *dimensions[pick(0, 3)] = OneOf<std::int64_t>(pick, {127, 128, 129, 255, 256, 257});
  }
  return s;
}

ProblemInputs RandomProblem(const Pick& pick, Shape shape, TensorStore& store) {
  const bool projected = Chance(pick, 8);
  if (projected) shape.kv_rows = shape.q_rows;
  Builder builder(pick, shape, store);
  ProblemInputs inputs;
  if (projected)
    builder.AddProjection(inputs);
  else
    builder.AddTensors(inputs);
  builder.AddLengths(inputs, inputs.options);
  builder.AddMaskAndBias(inputs.options);
  builder.AddScores(inputs.options);
  builder.AddOutputs(inputs.outputs);
  return inputs;
}

}  // namespace attnd
