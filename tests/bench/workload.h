// A problem of a given shape with random tensors, ready to be run again and again.
// Thread rule: one owner; Seconds from one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/attention.h"

namespace attnd::bench {

struct Shape {
  std::int64_t batch, q_heads, kv_heads, q_rows, kv_rows, d;
  bool causal = false, weights = false, mask = false, alibi = false, sinks = false, softcap = false;
  std::optional<std::int64_t> window_left = {};
  DType kv_dtype = DType::kFloat32;
};

class Workload {
 public:
  explicit Workload(const Shape& shape);

  // Of one run: the mean over as many runs as fill 20 ms.
  double Seconds(Executor& executor) const;
  // 4 B H Nq Nk d; half when causal, as the field counts.
  double flops() const;
  double kv_bytes() const { return static_cast<double>(k_.size() + v_.size()); }

 private:
  void RunOnce(Executor& executor) const;

  Shape shape_;
  std::vector<std::byte> q_, k_, v_, mask_;
  std::optional<Problem> problem_;
  // One output for all runs: what is timed is the core, not fresh pages.
  std::map<OutputKind, std::vector<std::byte>> outputs_;
  std::unique_ptr<DenseSink> sink_;
};

}  // namespace attnd::bench
