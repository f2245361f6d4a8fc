// What the contract allows between a tiled answer and the formula in float64 (proto/README.md, "How exact"): for the
// tests and the fuzzer of the core. Thread rule: plain functions.
#pragma once

#include <cstdint>
#include <string>

#include "core/attention.h"
#include "core/problem.h"

namespace attnd {

// A problem and its answer. The bytes of its tensors must live on.
struct Answered {
  Problem problem;
  DenseAnswer answer;

  // One element of a wanted output, by its place in [B, H, rows, columns].
  double At(OutputKind kind, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column) const;
};

// Two workers, shared by every test that does not ask for another number.
Executor& Pool();

// Runs the problem, which must be valid.
Answered Answer(const ProblemInputs& inputs, Executor& executor = Pool());

// The same in float64: reference mode.
Answered Truth(ProblemInputs inputs, Executor& executor = Pool());

// The same problem with weights, LSE and the scores of every step wanted.
ProblemInputs WithEveryOutput(ProblemInputs inputs);

// Empty when the answer of the tiled path keeps every bound of the contract in each output that is wanted, else what
// the first difference is. With x also every projected value is compared, and the attention is held to its bounds on
// those. A row is passed over where float32 itself ends: a dot product, logit or sum of values beyond FLT_MAX.
std::string DifferenceFromReference(const ProblemInputs& inputs, Executor& executor = Pool());

}  // namespace attnd
