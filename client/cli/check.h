// Sampled rows of an answer against the server's float64 reference mode, with the tolerance that the service promises.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace attnd::client {

// (sequence, head) -> rows, spread evenly over all rows, the first and the last among them.
using SampledRows = std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>>;
SampledRows SampleRows(const OutputLayout& layout, std::int64_t count);

// Rows of weights that were kept while blocks went by; float32.
class KeptRows {
 public:
  KeptRows(const SampledRows& rows, std::int64_t columns);
  // Copies what a block has of them.
  void Take(const v1::Block& block);
  // The sampled rows of one head one after another; empty when there are none.
  const std::vector<float>& Head(std::int64_t b, std::int64_t h) const { return values_.at({b, h}); }

 private:
  const SampledRows& rows_;
  std::int64_t columns_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> values_;
};

struct CheckResult {
  std::int64_t rows = 0;
  double output_error = 0, output_share = 0;    // largest difference, and largest as a share of its row's tolerance
  double weights_error = 0, weights_share = 0;  // likewise; only when weights were given
  bool with_weights = false;
  bool passed() const { return output_share <= 1 && weights_share <= 1; }
};

// `weights` may be null. UNIMPLEMENTED for problems whose rows cannot be recomputed alone.
absl::StatusOr<CheckResult> CheckRows(Client& client, const Problem& problem, const Answer& answer,
                                      const SampledRows& rows, const KeptRows* weights);

}  // namespace attnd::client
