// attnd_bench: the core's speed as shares of what the machine can do, each row measured in turn with the limit it is
// compared to.
//
//   attnd_bench [--json] [--pairs N] [--threads N] [--only TEXT]
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "core/attention.h"
#include "core/cost.h"
#include "core/problem.h"
#include "tests/bench/limits.h"

namespace attnd::bench {
namespace {

struct Row {
  const char* name;
  std::int64_t batch, q_heads, kv_heads, q_rows, kv_rows, d;
  bool causal = false;
  bool weights = false;
  bool by_bandwidth = false;  // compared with read bandwidth over K and V instead of FMA peak
};

constexpr Row kRows[] = {
    {"1,8/8,2048,2048,64", 1, 8, 8, 2048, 2048, 64},
    {"1,8/8,2048,2048,64 causal", 1, 8, 8, 2048, 2048, 64, true},
    {"1,8/8,2048,2048,64 weights", 1, 8, 8, 2048, 2048, 64, false, true},
    {"1,8/8,4096,4096,128", 1, 8, 8, 4096, 4096, 128},
    {"1,32/8,2048,2048,128 causal", 1, 32, 8, 2048, 2048, 128, true},
    {"8,8/8,128,128,64", 8, 8, 8, 128, 128, 64},
    {"1,8/8,1000,1003,80", 1, 8, 8, 1000, 1003, 80},
    {"1,32/32,1,4096,128 decode", 1, 32, 32, 1, 4096, 128, false, false, true},
    {"1,1/1,5,5,64", 1, 1, 1, 5, 5, 64},
};

std::vector<float> Normal(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

InputTensor Tensor(const std::vector<float>& values, std::vector<std::int64_t> shape) {
  return {DType::kFloat32, std::move(shape), reinterpret_cast<const std::byte*>(values.data())};
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void RunOnce(const Problem& problem, RowSink& sink, Executor& executor) {
  std::promise<absl::Status> done;
  StartAttention(std::shared_ptr<const Problem>(std::shared_ptr<void>(), &problem), sink, executor,
                 std::make_shared<CancelToken>(),
                 [&](const AttentionReport& report) { done.set_value(report.status); });
  if (!done.get_future().get().ok()) std::exit(1);
}

struct Result {
  double seconds = 0, rate = 0, limit = 0, share = 0;
};

Result Measure(const Row& row, Executor& executor, int pairs) {
  const std::vector<float> q = Normal(row.batch * row.q_heads * row.q_rows * row.d, 1);
  const std::vector<float> k = Normal(row.batch * row.kv_heads * row.kv_rows * row.d, 2);
  const std::vector<float> v = Normal(row.batch * row.kv_heads * row.kv_rows * row.d, 3);
  ProblemInputs inputs;
  inputs.q = Tensor(q, {row.batch, row.q_heads, row.q_rows, row.d});
  inputs.k = Tensor(k, {row.batch, row.kv_heads, row.kv_rows, row.d});
  inputs.v = Tensor(v, {row.batch, row.kv_heads, row.kv_rows, row.d});
  inputs.options.causal = row.causal;
  if (row.weights) inputs.outputs = {OutputKind::kWeights};
  const absl::StatusOr<Problem> problem = Problem::Create(inputs, {});
  if (!problem.ok()) {
    std::fprintf(stderr, "attnd_bench: %s\n", problem.status().ToString().c_str());
    std::exit(1);
  }
  // Square causal rows count half of the products, as the field does.
  double work =
      2.0 * static_cast<double>(row.batch * row.q_heads * row.q_rows) * static_cast<double>(row.kv_rows * 2 * row.d);
  if (row.causal) work /= 2;
  if (row.by_bandwidth) work = static_cast<double>((k.size() + v.size()) * sizeof(float));

  // One output for all runs: what is timed is the core, not fresh pages.
  std::map<OutputKind, std::vector<std::byte>> outputs;
  DenseSink sink(*problem, [&](OutputKind kind, std::int64_t bytes) {
    outputs[kind].resize(static_cast<std::size_t>(bytes));
    return outputs[kind].data();
  });
  std::vector<double> seconds, shares, limits;
  for (int pair = -1; pair < pairs; ++pair) {
    const double limit = row.by_bandwidth ? ReadBandwidth(executor) : FmaPeak(executor);
    const absl::Time start = absl::Now();
    int runs = 0;
    do {
      RunOnce(*problem, sink, executor);
      ++runs;
    } while (absl::Now() - start < absl::Milliseconds(20));
    const double each = absl::ToDoubleSeconds(absl::Now() - start) / runs;
    if (pair < 0) continue;  // warms caches, kernels and pages
    seconds.push_back(each);
    limits.push_back(limit);
    shares.push_back(work / each / limit);
  }
  return {Median(seconds), work / Median(seconds), Median(limits), Median(shares)};
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) {
  // As the server does: freed buffers keep their pages.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  bool json = false;
  int pairs = 9, threads = attnd::UsableCpus();
  std::string only;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--json") == 0)
      json = true;
    else if (std::strcmp(argv[i], "--pairs") == 0 && has_value)
      pairs = std::max(1, std::atoi(argv[++i]));
    else if (std::strcmp(argv[i], "--threads") == 0 && has_value)
      threads = std::max(1, std::atoi(argv[++i]));
    else if (std::strcmp(argv[i], "--only") == 0 && has_value)
      only = argv[++i];
    else {
      std::fprintf(stderr, "usage: attnd_bench [--json] [--pairs N] [--threads N] [--only TEXT]\n");
      return 2;
    }
  }
  if (const absl::Status status = attnd::CheckMachine(); !status.ok()) {
    std::fprintf(stderr, "attnd_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  attnd::Executor executor(threads);
  if (!json) {
    std::printf("%d threads, %s; median of %d pairs (limit, row)\n", threads,
                attnd::GetKernelInfo().instruction_set_used.c_str(), pairs);
    std::printf("%-32s %12s %12s %14s %8s\n", "B,Hq/Hkv,Nq,Nk,d", "time us", "rate", "limit", "share");
  }
  for (const attnd::bench::Row& row : attnd::bench::kRows) {
    if (!only.empty() && std::string(row.name).find(only) == std::string::npos) continue;
    const attnd::bench::Result result = attnd::bench::Measure(row, executor, pairs);
    const char* const unit = row.by_bandwidth ? "GB/s" : "GF/s";
    if (json) {
      std::printf("{\"row\":\"%s\",\"seconds\":%.9f,\"rate\":%.4g,\"limit\":%.4g,\"unit\":\"%s\",\"share\":%.4f}\n",
                  row.name, result.seconds, result.rate / 1e9, result.limit / 1e9, unit, result.share);
    } else {
      std::printf("%-32s %12.1f %7.1f %s %9.1f %s %7.3f\n", row.name, result.seconds * 1e6, result.rate / 1e9, unit,
                  result.limit / 1e9, unit, result.share);
    }
  }
  return 0;
}
