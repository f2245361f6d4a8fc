#include "client/cli/random.h"

#include <utility>

namespace attnd::client {

double Uniform(std::mt19937_64& generator) { return static_cast<double>(generator() >> 11) * 0x1p-53; }

absl::StatusOr<Array> RandomArray(std::mt19937_64& generator, DType dtype, std::vector<std::int64_t> shape) {
  absl::StatusOr<Array> array = Array::Zeros(dtype, std::move(shape));
  if (!array.ok()) return array;
  const std::int64_t count = array->elements();
  for (std::int64_t i = 0; i < count; ++i) {
    double sum = -2;
    for (int u = 0; u < 4; ++u) sum += Uniform(generator);
    array->Set(i, sum * 1.7320508075688772);  // of variance 1/3 before
  }
  return array;
}

}  // namespace attnd::client
