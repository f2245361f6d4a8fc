#include "core/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attnd {

void MergeAnswers(std::int64_t rows, std::int64_t d_v, float* output, float* lse, const float* other_output,
                  const float* other_lse) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const double first = lse[row], second = other_lse[row];
    const double largest = std::max(first, second);
    if (largest == -std::numeric_limits<double>::infinity()) {
      std::fill_n(output + row * d_v, d_v, 0.0F);
      continue;
    }
    // A NaN that std::max may have hidden comes out of the exponentials.
    const double first_weight = std::exp(first - largest), second_weight = std::exp(second - largest);
    const double sum = first_weight + second_weight;
    for (std::int64_t c = row * d_v; c < (row + 1) * d_v; ++c) {
      output[c] = static_cast<float>((first_weight * output[c] + second_weight * other_output[c]) / sum);
    }
    lse[row] = static_cast<float>(largest + std::log(sum));
  }
}

}  // namespace attnd
