#include "client/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace attnd::client {
namespace {

absl::Status CheckPair(const Answer& first, const Answer& second) {
  const Array* const lses[] = {first.Find(v1::OUTPUT_KIND_LSE), second.Find(v1::OUTPUT_KIND_LSE)};
  if (lses[0] == nullptr || lses[1] == nullptr) {
    return absl::InvalidArgumentError("merge: an answer came without OUTPUT_KIND_LSE, expected it in both");
  }
  if (first.output.shape != second.output.shape || lses[0]->shape != lses[1]->shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        "merge: output ", ShapeText(second.output.shape), " with lse ", ShapeText(lses[1]->shape), ", expected ",
        ShapeText(first.output.shape), " with lse ", ShapeText(lses[0]->shape), " as in the first answer"));
  }
  std::vector<std::int64_t> rows = first.output.shape;
  if (!rows.empty()) rows.pop_back();
  if (rows != lses[0]->shape) {
    return absl::InvalidArgumentError(absl::StrCat("merge: output ", ShapeText(first.output.shape), " with lse ",
                                                   ShapeText(lses[0]->shape),
                                                   ", expected an lse for each row in order"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Answer> MergeAnswers(const Answer& first, const Answer& second) {
  if (absl::Status status = CheckPair(first, second); !status.ok()) return status;
  Answer merged;
  merged.output = first.output;
  Array lse = *first.Find(v1::OUTPUT_KIND_LSE);
  const Array& other_lse = *second.Find(v1::OUTPUT_KIND_LSE);
  const std::int64_t rows = lse.elements(), width = rows == 0 ? 0 : merged.output.elements() / rows;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double l1 = lse.At(row), l2 = other_lse.At(row), largest = std::max(l1, l2);
    if (largest == -std::numeric_limits<double>::infinity()) continue;  // both are empty: 0 and -inf already
    // A NaN that std::max may have hidden comes out of the exponentials.
    const double w1 = std::exp(l1 - largest), w2 = std::exp(l2 - largest), sum = w1 + w2;
    for (std::int64_t c = row * width; c < (row + 1) * width; ++c) {
      merged.output.Set(c, (w1 * first.output.At(c) + w2 * second.output.At(c)) / sum);
    }
    lse.Set(row, largest + std::log(sum));
  }
  merged.extras.emplace_back(v1::OUTPUT_KIND_LSE, std::move(lse));
  return merged;
}

}  // namespace attnd::client
