// Problems made by chance, for the tests and the fuzzer of the core: shapes, values and every option.
// Thread rule: pure functions; a TensorStore has one owner.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "core/problem.h"
#include "tests/core/inputs.h"

namespace attnd {

struct Shape {
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, q_rows = 0, kv_rows = 0, d_k = 0, d_v = 0;
};

// Normally distributed numbers around 0.
std::vector<double> Normal(std::int64_t count, std::mt19937& generator, double spread = 1);

// q, k and v of normally distributed numbers, without options.
ProblemInputs RandomInputs(const Shape& s, TensorStore& store, std::mt19937& generator, DType dtype = DType::kFloat32,
                           Layout layout = Layout::kBHND);

// Where choices come from: a number in [low, high], from a seeded generator or from a fuzzer's bytes. `low` is always
// the plainest choice.
using Pick = std::function<std::int64_t(std::int64_t low, std::int64_t high)>;
Pick PickFrom(std::mt19937& generator);

// Dimensions of 0 to 40, and now and then one or two of them beside the end of a tile while the others are small. A few
// milliseconds of work at most.
Shape RandomShape(const Pick& pick);

// A valid problem of that shape with any of the options: dtypes, layout, mask, bias, ..., wanted outputs, and
// projections (of x, with Nk = Nq). Values are ordinary, large, partly subnormal or partly not finite; infinities and
// subnormal numbers do not meet in one problem, since infinity times a number that is flushed to zero is NaN.
ProblemInputs RandomProblem(const Pick& pick, Shape shape, TensorStore& store);

}  // namespace attnd
