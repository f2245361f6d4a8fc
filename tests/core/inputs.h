// Tensors with their bytes, for tests of the core.
// Thread rule: one owner.
#pragma once

#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/checked.h"
#include "core/problem.h"

namespace attnd {

// Keeps the bytes that InputTensors point to.
class TensorStore {
 public:
  InputTensor Floats(std::vector<std::int64_t> shape, const std::vector<double>& values,
                     DType dtype = DType::kFloat64) {
    InputTensor tensor = Bytes(dtype, std::move(shape));
    for (std::size_t n = 0; n < values.size(); ++n) {
      StoreFromDouble(dtype, values[n], bytes_.back().data() + n * static_cast<std::size_t>(ElementBytes(dtype)));
    }
    return tensor;
  }
  // Every element the same.
  InputTensor Filled(std::vector<std::int64_t> shape, double value, DType dtype = DType::kFloat64) {
    const std::int64_t count = CheckedProduct(shape).value();
    return Floats(std::move(shape), std::vector<double>(static_cast<std::size_t>(count), value), dtype);
  }
  InputTensor Bools(std::vector<std::int64_t> shape, const std::vector<int>& values) {
    InputTensor tensor = Bytes(DType::kBool, std::move(shape));
    for (std::size_t n = 0; n < values.size(); ++n) bytes_.back()[n] = static_cast<std::byte>(values[n]);
    return tensor;
  }
  InputTensor Ints(std::vector<std::int64_t> shape, const std::vector<std::int64_t>& values) {
    InputTensor tensor = Bytes(DType::kInt64, std::move(shape));
    if (!values.empty()) std::memcpy(bytes_.back().data(), values.data(), values.size() * sizeof(std::int64_t));
    return tensor;
  }

 private:
  InputTensor Bytes(DType dtype, std::vector<std::int64_t> shape) {
    const std::int64_t count = CheckedProduct(shape).value();
    bytes_.emplace_back(static_cast<std::size_t>(count * ElementBytes(dtype)));
    return {dtype, std::move(shape), bytes_.back().data()};
  }
  std::deque<std::vector<std::byte>> bytes_;
};

// A tensor without data, for what depends on shapes alone.
inline InputTensor Shaped(std::vector<std::int64_t> shape, DType dtype = DType::kFloat32) {
  return {dtype, std::move(shape), nullptr};
}

// q, k, v without data.
inline ProblemInputs ShapedInputs(std::vector<std::int64_t> q, std::vector<std::int64_t> k,
                                  std::vector<std::int64_t> v) {
  ProblemInputs inputs;
  inputs.q = Shaped(std::move(q));
  inputs.k = Shaped(std::move(k));
  inputs.v = Shaped(std::move(v));
  return inputs;
}

// The problem, which must be valid.
inline Problem Made(const ProblemInputs& inputs, const ProblemLimits& limits = {}) {
  return Problem::Create(inputs, limits).value();
}

}  // namespace attnd
