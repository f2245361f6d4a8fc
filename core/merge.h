// Merging answers of the same queries over disjoint keys into the answer over all of them (the rule by which flash
// attention merges its blocks):
//
//   m = max(l1, l2), w = e^(l - m);  O = (w1 O1 + w2 O2) / (w1 + w2),  LSE = m + ln(w1 + w2)
//
// A part without allowed keys has O = 0 and LSE = -inf; two of them give the same. NaN stays NaN. A sink belongs to one
// part. Thread rule: pure function on memory the caller owns.
#pragma once

#include <cstdint>

namespace attnd {

// Merges `other` into `output` and `lse`. output, other_output: [rows, d_v]; lse, other_lse: [rows], natural log.
void MergeAnswers(std::int64_t rows, std::int64_t d_v, float* output, float* lse, const float* other_output,
                  const float* other_lse);

}  // namespace attnd
