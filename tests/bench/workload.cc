#include "tests/bench/workload.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <numeric>
#include <random>

#include "absl/time/clock.h"
#include "core/cost.h"

namespace attnd::bench {
namespace {

std::vector<std::byte> Normal(std::int64_t count, DType dtype, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * ElementBytes(dtype)));
  for (std::int64_t n = 0; n < count; ++n)
    StoreFromDouble(dtype, normal(generator), bytes.data() + n * ElementBytes(dtype));
  return bytes;
}

}  // namespace

Workload::Workload(const Shape& shape) : shape_(shape) {
  ProblemInputs inputs;
  if (shape.d_model > 0) {
    const std::int64_t q_width = shape.q_heads * shape.d, kv_width = shape.kv_heads * shape.d;
    w_q_ = Normal(shape.d_model * q_width, DType::kFloat32, 2);
    w_kv_ = Normal(shape.d_model * kv_width, DType::kFloat32, 3);
    ProjectionInputs& projection = inputs.projection.emplace();
    projection.q_heads = shape.q_heads;
    projection.kv_heads = shape.kv_heads;
    projection.w_q = InputTensor{DType::kFloat32, {shape.d_model, q_width}, w_q_.data()};
    projection.w_k = projection.w_v = InputTensor{DType::kFloat32, {shape.d_model, kv_width}, w_kv_.data()};
    if (shape.w_o) {
      w_o_ = Normal(q_width * shape.d_model, DType::kFloat32, 4);
      projection.w_o = InputTensor{DType::kFloat32, {q_width, shape.d_model}, w_o_.data()};
    }
    // Unit-variance q and k from unit-variance x and weights.
    inputs.options.scale = 1.0 / (static_cast<double>(shape.d_model) * std::sqrt(static_cast<double>(shape.d)));
  } else {
    q_ = Normal(shape.batch * shape.q_heads * shape.q_rows * shape.d, shape.q_dtype, 1);
    k_ = Normal(shape.batch * shape.kv_heads * shape.kv_rows * shape.d, shape.kv_dtype, 2);
    v_ = Normal(shape.batch * shape.kv_heads * shape.kv_rows * shape.d, shape.kv_dtype, 3);
    inputs.q = InputTensor{shape.q_dtype, {shape.batch, shape.q_heads, shape.q_rows, shape.d}, q_.data()};
    inputs.k = InputTensor{shape.kv_dtype, {shape.batch, shape.kv_heads, shape.kv_rows, shape.d}, k_.data()};
    inputs.v = InputTensor{shape.kv_dtype, {shape.batch, shape.kv_heads, shape.kv_rows, shape.d}, v_.data()};
  }
  inputs.options.kv_len = shape.lengths;
  if (shape.q_rows > 1) inputs.options.q_len = shape.lengths;
  if (shape.scale.has_value()) inputs.options.scale = shape.scale;
  inputs.options.causal = shape.causal;
  inputs.options.window_left = shape.window_left;
  if (shape.softcap) inputs.options.softcap = 30.0;
  if (shape.alibi) inputs.options.alibi_slopes.assign(static_cast<std::size_t>(shape.q_heads), 0.01F);
  if (shape.sinks) inputs.options.sinks.assign(static_cast<std::size_t>(shape.q_heads), 1.0F);
  if (shape.mask) {
    // [B, 1, 1, Nk]: the last tenth of every sequence is padding.
    mask_.assign(static_cast<std::size_t>(shape.batch * shape.kv_rows), std::byte{1});
    for (std::int64_t n = 0; n < shape.batch * shape.kv_rows; ++n) {
      if (n % shape.kv_rows >= shape.kv_rows * 9 / 10) mask_[static_cast<std::size_t>(n)] = std::byte{0};
    }
    inputs.options.mask = InputTensor{DType::kBool, {shape.batch, 1, 1, shape.kv_rows}, mask_.data()};
  }
  if (shape.weights) inputs.outputs = {OutputKind::kWeights};
  callers_.resize(static_cast<std::size_t>(shape.callers));
  unsigned seed = 1;
  for (Caller& caller : callers_) {
    if (shape.d_model > 0) {
      caller.x = Normal(shape.batch * shape.q_rows * shape.d_model, DType::kFloat32, seed++);
      inputs.x = InputTensor{DType::kFloat32, {shape.batch, shape.q_rows, shape.d_model}, caller.x.data()};
    }
    absl::StatusOr<Problem> problem = Problem::Create(inputs, {});
    if (!problem.ok()) {
      std::fprintf(stderr, "attnd_bench: %s\n", problem.status().ToString().c_str());
      std::exit(1);
    }
    caller.problem = *std::move(problem);
    caller.sink = std::make_unique<DenseSink>(*caller.problem, [&caller](OutputKind kind, std::int64_t bytes) {
      caller.outputs[kind].resize(static_cast<std::size_t>(bytes));
      return caller.outputs[kind].data();
    });
  }
}

double Workload::flops() const {
  const double products = 4.0 * static_cast<double>(shape_.batch * shape_.q_heads * shape_.q_rows) *
                          static_cast<double>(shape_.kv_rows * shape_.d);
  return shape_.causal ? products / 2 : products;
}

double Workload::projection_flops() const {
  return 2.0 * static_cast<double>(shape_.batch * shape_.q_rows * shape_.d_model) *
         static_cast<double>((shape_.q_heads + 2 * shape_.kv_heads) * shape_.d);
}

double Workload::packed_k_bytes() const {
  const absl::StatusOr<Cost> cost = EstimateCost(*callers_.front().problem, /*layers=*/1);
  return cost.ok() ? static_cast<double>(cost->packed_k_bytes) : 0;
}

double Workload::kv_bytes() const {
  if (shape_.lengths.empty()) return static_cast<double>(k_.size() + v_.size());
  const auto keys = std::accumulate(shape_.lengths.begin(), shape_.lengths.end(), std::int64_t{0});
  return 2.0 * static_cast<double>(keys * shape_.kv_heads * shape_.d * ElementBytes(shape_.kv_dtype));
}

void Workload::RunOnce(Executor& executor) const {
  std::vector<std::promise<absl::Status>> done(callers_.size());
  for (std::size_t n = 0; n < callers_.size(); ++n) {
    const Caller& caller = callers_[n];
    StartAttention(std::shared_ptr<const Problem>(std::shared_ptr<void>(), &*caller.problem), *caller.sink, executor,
                   std::make_shared<CancelToken>(),
                   [&done = done[n]](const AttentionReport& report) { done.set_value(report.status); });
  }
  for (std::promise<absl::Status>& one : done) {
    if (!one.get_future().get().ok()) std::exit(1);
  }
}

double Workload::Seconds(Executor& executor) const {
  const absl::Time start = absl::Now();
  int runs = 0;
  do {
    RunOnce(executor);
    ++runs;
  } while (absl::Now() - start < absl::Milliseconds(20));
  return absl::ToDoubleSeconds(absl::Now() - start) / runs;
}

}  // namespace attnd::bench
