// Numbers by chance, the same on every machine for the same seed: nothing here is a library's choice.
// Thread rule: a generator belongs to one thread.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "client/array.h"

namespace attnd::client {

// In [0, 1), of 53 bits.
double Uniform(std::mt19937_64& generator);

// Near enough to normal numbers of mean 0 and variance 1: each the sum of four uniform ones. INVALID_ARGUMENT as
// Array::Zeros.
absl::StatusOr<Array> RandomArray(std::mt19937_64& generator, DType dtype, std::vector<std::int64_t> shape);

}  // namespace attnd::client
