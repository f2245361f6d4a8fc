#include "tests/core/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFloatMax = std::numeric_limits<float>::max();
constexpr double kUnit = 0x1p-24, kTiny = 0x1p-126;
constexpr OutputKind kScores[] = {OutputKind::kScoresDot, OutputKind::kScoresScaled, OutputKind::kScoresCapped,
                                  OutputKind::kScoresBiased};

double Element(const TensorView& view, const std::byte* row, std::int64_t column) {
  return LoadAsDouble(view.dtype, row + column * view.stride[3] * ElementBytes(view.dtype));
}

std::vector<double> LoadRow(const TensorView& view, std::int64_t b, std::int64_t h, std::int64_t n) {
  std::vector<double> values(static_cast<std::size_t>(view.shape[3]));
  const std::byte* const row = view.Row(b, h, n);
  for (std::size_t t = 0; t < values.size(); ++t) values[t] = Element(view, row, static_cast<std::int64_t>(t));
  return values;
}

// The rules of exclusion, key by key as the contract states them.
bool Allowed(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const auto sequence = static_cast<std::size_t>(b);
  if (i >= p.q_len[sequence] || j >= p.kv_len[sequence]) return false;
  const std::int64_t ahead = j - (i + p.q_offset[sequence]);  // j - p
  if (p.causal && ahead > 0) return false;
  if (p.window_left && -ahead > *p.window_left) return false;
  if (p.window_right && ahead > *p.window_right) return false;
  if (p.mask && p.mask->Row(b, h, i)[j * p.mask->stride[3]] == std::byte{0}) return false;
  return !p.bias || Element(*p.bias, p.bias->Row(b, h, i), j) != -kInfinity;
}

// What the bounds of one row are made of.
struct RowSizes {
  std::vector<bool> allowed;
  bool any_allowed = false;
  double dot = 0;     // the largest sum |q||k|
  double scaled = 0;  // the largest |scale| * sum |q||k|
  double logit = 0;   // A: the largest |scale| * sum |q||k| + |bias| + slope * |p - j|
  double value = 0;   // max |V|
  bool in_float_range = true;
};

// Rows of one kv head of one sequence, widened once.
class Sizes {
 public:
  explicit Sizes(const Problem& problem) : p_(problem) {}

  // Only finite numbers count: others make a row NaN or take no weight, and need no bound.
  RowSizes Of(std::int64_t b, std::int64_t h, std::int64_t i) {
    LoadHead(b, h / (p_.q_heads / p_.kv_heads));
    RowSizes row;
    row.allowed.resize(static_cast<std::size_t>(p_.kv_rows));
    const std::vector<double> q = LoadRow(p_.q, b, h, i);
    for (std::int64_t j = 0; j < p_.kv_rows; ++j) {
      const auto key = static_cast<std::size_t>(j);
      if (!Allowed(p_, b, h, i, j)) continue;
      row.allowed[key] = row.any_allowed = true;
      row.value = std::max(row.value, values_[key]);
      const double dot = DotSize(q, keys_[key]);
      double scaled = std::abs(p_.scale) * dot;
      if (p_.softcap && std::isinf(scaled)) scaled = *p_.softcap;  // what an infinite score becomes
      const double logit = scaled + Additions(b, h, i, j);
      if (std::isfinite(dot)) row.dot = std::max(row.dot, dot);
      if (std::isfinite(scaled)) row.scaled = std::max(row.scaled, scaled);
      if (std::isfinite(logit)) row.logit = std::max(row.logit, logit);
    }
    row.in_float_range = std::max({row.dot, row.logit, row.value * static_cast<double>(p_.kv_rows)}) < kFloatMax;
    return row;
  }

 private:
  void LoadHead(std::int64_t b, std::int64_t kv_head) {
    if (std::exchange(head_, {b, kv_head}) == std::pair(b, kv_head)) return;
    keys_.clear();
    values_.clear();
    // Keys beyond kv_len may be on no page.
    for (std::int64_t j = 0; j < p_.kv_len[static_cast<std::size_t>(b)]; ++j) {
      keys_.push_back(LoadRow(p_.k, b, kv_head, j));
      double largest = 0;
      for (const double value : LoadRow(p_.v, b, kv_head, j)) {
        if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
      }
      values_.push_back(largest);
    }
  }

  // A rotary embedding turns q and k, so there |q| |k|, the product of their lengths, takes the place of sum |q||k|.
  double DotSize(const std::vector<double>& q, const std::vector<double>& k) const {
    double sum = 0, q_squares = 0, k_squares = 0;
    if (!p_.rotary) {
      for (std::size_t t = 0; t < q.size(); ++t) sum += std::abs(q[t] * k[t]);
      return sum;
    }
    for (std::size_t t = 0; t < q.size(); ++t) {
      q_squares += q[t] * q[t];
      k_squares += k[t] * k[t];
    }
    return std::sqrt(q_squares * k_squares);
  }

  double Additions(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    double added = p_.bias ? std::abs(Element(*p_.bias, p_.bias->Row(b, h, i), j)) : 0;
    if (!p_.alibi_slopes.empty()) {
      added += std::abs(static_cast<double>(p_.alibi_slopes[static_cast<std::size_t>(h)]) *
                        static_cast<double>(i + p_.q_offset[static_cast<std::size_t>(b)] - j));
    }
    return added;
  }

  const Problem& p_;
  std::pair<std::int64_t, std::int64_t> head_ = {-1, -1};
  std::vector<std::vector<double>> keys_;  // [kv_len][d_k]
  std::vector<double> values_;             // [kv_len]: the largest |v| of each key
};

// One rounding to an output's dtype; to float32 it is part of the bound.
double Rounding(DType dtype, double size) {
  if (dtype == DType::kFloat16) return 0x1p-11 * size + 0x1p-25;
  return dtype == DType::kBFloat16 ? 0x1p-8 * size : 0;
}

double Largest(DType dtype) { return dtype == DType::kFloat16 ? 65504 : kFloatMax; }

// An answer beside the truth, which may have come in another layout.
class Comparison {
 public:
  Comparison(const Answered& got, const Answered& want)
      : got_(got), want_(want), p_(got.problem), sizes_(want.problem) {}

  std::string FirstDifference() {
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      for (std::int64_t i = 0; i < p_.q_rows; ++i) {
        OutputRow projected(static_cast<std::size_t>(p_.d_out));
        bool in_float_range = true;
        for (std::int64_t h = 0; h < p_.q_heads && difference_.empty(); ++h) {
          place_ = {b, h, i};
          const RowSizes row = sizes_.Of(b, h, i);
          in_float_range &= row.in_float_range;
          if (!row.in_float_range) continue;
          CompareWeightsAndScores(row);
          CompareLse(row);
          if (p_.d_out == 0) CompareOutput(row);
          if (p_.d_out > 0) AddToProjected(row, projected);
        }
        if (p_.d_out > 0 && in_float_range && difference_.empty()) CompareProjectedOutput(projected);
        if (!difference_.empty()) return difference_;
      }
    }
    CompareCountOfNonFiniteRows();
    return difference_;
  }

 private:
  struct Place {
    std::int64_t b = 0, h = 0, i = 0;
  };
  struct OutputElement {
    double value = 0, size = 0, bound = 0;
  };
  using OutputRow = std::vector<OutputElement>;  // [d_out]

  void Differ(OutputKind kind, std::int64_t column, double got, double want, double bound) {
    difference_ =
        absl::StrCat(std::string(Name(kind)), " at b ", place_.b, " h ", place_.h, " i ", place_.i, " column ", column,
                     ": got ", got, ", want ", want, ", off by ", got - want, " of ", bound);
  }

  double Got(OutputKind kind, std::int64_t column) const {
    return got_.At(kind, place_.b, p_.d_out > 0 && kind == OutputKind::kOutput ? 0 : place_.h, place_.i, column);
  }
  double Want(OutputKind kind, std::int64_t column) const {
    return want_.At(kind, place_.b, place_.h, place_.i, column);
  }

  void CompareScalar(OutputKind kind, std::int64_t column, double want, double bound) {
    const double got = Got(kind, column);
    const bool same = std::isnan(want) ? std::isnan(got) : got == want || std::abs(got - want) <= bound;
    if (!same) Differ(kind, column, got, want, bound);
  }

  void CompareWeightsAndScores(const RowSizes& row) {
    double sum = 0;
    for (std::int64_t j = 0; j < p_.kv_rows; ++j) {
      const bool allowed = row.allowed[static_cast<std::size_t>(j)];
      for (const OutputKind kind : kScores) {
        if (!p_.Wants(kind)) continue;
        const double size = kind == OutputKind::kScoresDot      ? row.dot
                            : kind == OutputKind::kScoresBiased ? row.logit
                                                                : row.scaled;
        CompareScalar(kind, j, allowed ? Want(kind, j) : -kInfinity, 8 * kUnit * (1 + size) + kTiny);
      }
      if (!p_.Wants(OutputKind::kWeights)) continue;
      CompareScalar(OutputKind::kWeights, j, allowed ? Want(OutputKind::kWeights, j) : 0,
                    allowed ? 8 * kUnit * (4 + row.logit) + kTiny : 0);
      sum += Got(OutputKind::kWeights, j);
    }
    if (!p_.Wants(OutputKind::kWeights) || !row.any_allowed || std::isnan(sum) || !p_.sinks.empty()) return;
    if (std::abs(sum - 1) > 2e-6) Differ(OutputKind::kWeights, -1, sum, 1, 2e-6);
  }

  void CompareLse(const RowSizes& row) {
    if (!p_.Wants(OutputKind::kLse)) return;
    CompareScalar(OutputKind::kLse, 0, Want(OutputKind::kLse, 0), row.any_allowed ? 1e-6 * (4 + row.logit) : 0);
  }

  static double OutputBound(const RowSizes& row) {
    return row.any_allowed ? 8 * kUnit * (4 + row.logit) * row.value + kTiny : 0;
  }

  void CompareOutput(const RowSizes& row) {
    for (std::int64_t c = 0; c < p_.d_v; ++c) {
      CompareOutputElement(c, Want(OutputKind::kOutput, c), OutputBound(row));
    }
  }

  // Weights that are 0 in float32 and not quite in float64 turn an infinite value into NaN in one of them only.
  void CompareOutputElement(std::int64_t column, double want, double bound) {
    const double got = Got(OutputKind::kOutput, column);
    const double all = bound + Rounding(p_.output_dtype, std::abs(want) + bound);
    const bool overflows =
        std::isinf(got) && std::signbit(got) == std::signbit(want) && std::abs(want) + all >= Largest(p_.output_dtype);
    const bool same = std::isfinite(want) ? std::abs(got - want) <= all || overflows
                                          : std::isnan(got) || (std::isinf(got) && !std::isnan(want));
    if (!same) Differ(OutputKind::kOutput, column, got, want, all);
  }

  // out += O of this head times its rows of W_O, with what the bound on O becomes by it.
  void AddToProjected(const RowSizes& row, OutputRow& out) {
    const Linear& linear = *p_.projection->o;
    for (std::int64_t c = 0; c < p_.d_v; ++c) {
      const double value = Want(OutputKind::kOutput, c);
      const std::int64_t in = place_.h * p_.d_v + c;
      for (std::int64_t n = 0; n < p_.d_out; ++n) {
        const std::int64_t index = linear.transposed ? n * linear.in + in : in * linear.out + n;
        const double weight = LoadAsDouble(linear.dtype, linear.weight + index * ElementBytes(linear.dtype));
        OutputElement& element = out[static_cast<std::size_t>(n)];
        element.value += value * weight;
        element.size += std::abs(value * weight);
        element.bound += OutputBound(row) * std::abs(weight);
      }
    }
  }

  void CompareProjectedOutput(const OutputRow& out) {
    const Linear& linear = *p_.projection->o;
    const bool beyond = place_.i >= p_.q_len[static_cast<std::size_t>(place_.b)];
    for (std::int64_t n = 0; n < p_.d_out && difference_.empty(); ++n) {
      if (beyond) {
        CompareScalar(OutputKind::kOutput, n, 0, 0);
        continue;
      }
      const OutputElement& element = out[static_cast<std::size_t>(n)];
      const double bias = linear.bias == nullptr
                              ? 0
                              : LoadAsDouble(*linear.bias_dtype, linear.bias + n * ElementBytes(*linear.bias_dtype));
      CompareOutputElement(
          n, element.value + bias,
          element.bound + kUnit * static_cast<double>(linear.in + 1) * (element.size + std::abs(bias)) + kTiny);
    }
  }

  // With w_o the rows that are counted are those before it, which do not leave.
  void CompareCountOfNonFiniteRows() {
    if (!difference_.empty() || p_.d_out > 0) return;
    std::int64_t rows = 0;
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      for (std::int64_t h = 0; h < p_.q_heads; ++h) {
        for (std::int64_t i = 0; i < p_.q_rows; ++i) {
          bool finite = true;
          for (std::int64_t c = 0; c < p_.d_v; ++c) finite &= std::isfinite(got_.At(OutputKind::kOutput, b, h, i, c));
          rows += !finite;
        }
      }
    }
    if (rows != got_.answer.nonfinite_rows) {
      difference_ = absl::StrCat("nonfinite_rows: ", got_.answer.nonfinite_rows, " for ", rows, " such rows");
    }
  }

  const Answered &got_, &want_;
  const Problem& p_;
  Sizes sizes_;
  Place place_;
  std::string difference_;
};

// The attention alone, on the projected values that the answer holds.
ProblemInputs InnerInputs(const ProblemInputs& inputs, const Answered& tiled) {
  ProblemInputs inner;
  inner.options = inputs.options;
  inner.options.layout = Layout::kBHND;
  inner.options.lengths = {};
  inner.options.q_len = tiled.problem.q_len;
  inner.options.kv_len = tiled.problem.kv_len;
  const auto tensor = [&](OutputKind kind) {
    return InputTensor{DType::kFloat32, tiled.problem.ReplyShape(kind),
                       tiled.answer.tensors[static_cast<std::size_t>(kind)].data()};
  };
  inner.q = tensor(OutputKind::kProjectedQ);
  inner.k = tensor(OutputKind::kProjectedK);
  inner.v = tensor(OutputKind::kProjectedV);
  for (const OutputKind kind : inputs.outputs) {
    if (kind < OutputKind::kProjectedQ) inner.outputs.push_back(kind);
  }
  return inner;
}

// Sum |x||w| + |b| of one projected value.
double ProjectedSize(const Projection& projection, const Linear& linear, std::int64_t b, std::int64_t n,
                     std::int64_t column) {
  double size =
      linear.bias == nullptr
          ? 0
          : std::abs(LoadAsDouble(*linear.bias_dtype, linear.bias + column * ElementBytes(*linear.bias_dtype)));
  const std::byte* const x = projection.x.Row(b, 0, n);
  for (std::int64_t t = 0; t < linear.in; ++t) {
    const std::int64_t index = linear.transposed ? column * linear.in + t : t * linear.out + column;
    size += std::abs(Element(projection.x, x, t) *
                     LoadAsDouble(linear.dtype, linear.weight + index * ElementBytes(linear.dtype)));
  }
  return size;
}

std::string DifferenceOfProjected(const Answered& got, const Answered& want) {
  const Projection& projection = *got.problem.projection;
  for (const auto& [kind, linear] : {std::pair{OutputKind::kProjectedQ, &projection.q},
                                     {OutputKind::kProjectedK, &projection.k},
                                     {OutputKind::kProjectedV, &projection.v}}) {
    const auto [batch, heads, rows, columns] = got.problem.OutputShape(kind);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t n = 0; n < rows; ++n) {
          for (std::int64_t c = 0; c < columns; ++c) {
            const double value = got.At(kind, b, h, n, c), right = want.At(kind, b, h, n, c);
            const double size = ProjectedSize(projection, *linear, b, n, h * columns + c);
            const double bound = kUnit * static_cast<double>(projection.d_model + 1) * size + kTiny;
            if (std::isnan(right) ? std::isnan(value) : value == right || std::abs(value - right) <= bound) continue;
            return absl::StrCat(std::string(Name(kind)), " at b ", b, " h ", h, " n ", n, " column ", c, ": got ",
                                value, ", want ", right, " within ", bound);
          }
        }
      }
    }
  }
  return {};
}

}  // namespace

double Answered::At(OutputKind kind, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column) const {
  const auto [batch, heads, rows, columns] = problem.OutputShape(kind);
  const bool rows_first = kind == OutputKind::kOutput && problem.layout == Layout::kBNHD;
  const std::int64_t line = rows_first ? (b * rows + row) * heads + h : (b * heads + h) * rows + row;
  const DType dtype = problem.OutputDType(kind);
  return LoadAsDouble(
      dtype, answer.tensors[static_cast<std::size_t>(kind)].data() + (line * columns + column) * ElementBytes(dtype));
}

Executor& Pool() {
  static auto* const executor = new Executor(2);
  return *executor;
}

Answered Answer(const ProblemInputs& inputs, Executor& executor) {
  Problem problem = Problem::Create(inputs, {}).value();
  DenseAnswer answer = Attend(problem, executor).value();
  return {std::move(problem), std::move(answer)};
}

Answered Truth(ProblemInputs inputs, Executor& executor) {
  inputs.options.reference = true;
  inputs.options.output_dtype = DType::kFloat64;
  return Answer(inputs, executor);
}

ProblemInputs WithEveryOutput(ProblemInputs inputs) {
  inputs.outputs = {OutputKind::kWeights, OutputKind::kLse};
  inputs.outputs.insert(inputs.outputs.end(), std::begin(kScores), std::end(kScores));
  return inputs;
}

std::string DifferenceFromReference(const ProblemInputs& inputs, Executor& executor) {
  if (!inputs.x) {
    const Answered tiled = Answer(inputs, executor);
    return Comparison(tiled, Truth(inputs, executor)).FirstDifference();
  }
  ProblemInputs asked = inputs;
  for (const OutputKind kind : {OutputKind::kProjectedQ, OutputKind::kProjectedK, OutputKind::kProjectedV}) {
    if (std::find(asked.outputs.begin(), asked.outputs.end(), kind) == asked.outputs.end())
      asked.outputs.push_back(kind);
  }
  const Answered tiled = Answer(asked, executor);
  const std::string projected = DifferenceOfProjected(tiled, Truth(asked, executor));
  if (!projected.empty()) return projected;
  return Comparison(tiled, Truth(InnerInputs(inputs, tiled), executor)).FirstDifference();
}

}  // namespace attnd
