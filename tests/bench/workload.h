// A problem of a given shape with random tensors, or several at once, ready to be run again and again.
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
  DType q_dtype = DType::kFloat32, kv_dtype = DType::kFloat32;
  std::optional<double> scale = {};
  std::vector<std::int64_t> lengths = {};  // kv_len of each sequence, and q_len where there is more than one query
  std::int64_t d_model = 0;                // not 0: q, k and v are projected from x [B, Nq, d_model]
  bool w_o = false;                        // and the output, to d_model
  int callers = 1;                         // problems at once; with d_model each has its x, and all the same weights
};

class Workload {
 public:
  explicit Workload(const Shape& shape);

  // Of one run, of all callers' problems: the mean over as many runs as fill 20 ms.
  double Seconds(Executor& executor) const;
  // 4 B H Nq Nk d; half when causal, as the field counts. Of one problem, without projections.
  double flops() const;
  double projection_flops() const;
  // Of K packed ahead of all units.
  double packed_k_bytes() const;
  // Of K and V that lengths leave.
  double kv_bytes() const;

 private:
  void RunOnce(Executor& executor) const;

  Shape shape_;
  std::vector<std::byte> q_, k_, v_, mask_, w_q_, w_kv_, w_o_;
  // One output for all runs: what is timed is the core, not fresh pages.
  struct Caller {
    std::vector<std::byte> x;
    std::optional<Problem> problem;
    std::map<OutputKind, std::vector<std::byte>> outputs;
    std::unique_ptr<DenseSink> sink;
  };
  std::vector<Caller> callers_;
};

}  // namespace attnd::bench
