// Merging answers of the same queries over disjoint keys, each asked for with its LSE, into the answer over all keys:
//
//   m = max(l1, l2), w = e^(l - m);  O = (w1 O1 + w2 O2) / (w1 + w2),  LSE = m + ln(w1 + w2)
//
// in float64, rounded once into the first answer's types. A part without allowed keys (LSE -inf) changes nothing; two
// of them give O = 0 and LSE = -inf. A sink must be given to exactly one part. Thread rule: pure function.
#pragma once

#include "absl/status/statusor.h"
#include "client/client.h"

namespace attnd::client {

// Output and LSE of both together; statistics and other extras are left out. INVALID_ARGUMENT when an LSE is missing or
// shapes differ. Both outputs must be heads-first ([B, H, N, d], or the lower ranks), as LSE is.
absl::StatusOr<Answer> MergeAnswers(const Answer& first, const Answer& second);

}  // namespace attnd::client
