// attnd_bench: the core's speed, each row measured in turn with what it is compared to: the FMA peak, the read
// bandwidth, or another row of the table. What counts is the ratio of a pair; the median of the pairs is printed, and
// the resident memory that a row's first run took above its inputs, outputs and packed K.
//
//   attnd_bench [--json] [--pairs N] [--threads N] [--only TEXT]
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/attention.h"
#include "core/buffer_pool.h"
#include "core/kernel_info.h"
#include "core/peak.h"
#include "tests/bench/limits.h"
#include "tests/bench/workload.h"

namespace attnd::bench {
namespace {

// What a row's figure is: its FLOP/s over the FMA peak, its bytes/s over the read bandwidth, its time over the others'
// together (as often as it has callers), its FLOP/s over the other's (measured on both sides of one long run), or the
// FLOP/s of its projections, in the time that it takes longer than the other, over the FMA peak.
enum class Against { kFmaPeak, kBandwidth, kTimeOf, kRateOf, kProjection };

struct Row {
  const char* name;
  Shape shape;
  Against against = Against::kFmaPeak;
  std::vector<Shape> others;  // kTimeOf, kRateOf, kProjection
  const char* target = "";
};

Shape With(Shape shape, void (*change)(Shape&)) {
  change(shape);
  return shape;
}

// B, Hq, Hkv, Nq, Nk, d
const Shape kMiddle{1, 8, 8, 2048, 2048, 64};
const Shape kMasked{4, 12, 12, 512, 512, 64};
const Shape kWindowed = With({1, 8, 8, 16384, 16384, 64}, [](Shape& s) { s.causal = true; });
const Shape kLong{1, 1, 1, 8192, 8192, 64};
const Shape kLongest{1, 1, 1, 131072, 131072, 64};

// 64 sequences of 32 to 2048 tokens in one batch, and each alone.
Shape Ragged() {
  Shape shape{64, 4, 4, 2048, 2048, 64};
  for (std::int64_t n = 1; n <= 64; ++n) shape.lengths.push_back(32 * n);
  return shape;
}
std::vector<Shape> RaggedParts() {
  std::vector<Shape> parts;
  for (const std::int64_t length : Ragged().lengths) parts.push_back({1, 4, 4, length, length, 64});
  return parts;
}

// One query each over 16 sequences of 100 to 8000 keys.
Shape DecodeMix() {
  Shape shape{16, 32, 8, 1, 8000, 128};
  for (std::int64_t n = 0; n < 16; ++n) shape.lengths.push_back(100 + 7900 * n / 15);
  return shape;
}

// Callers of few rows that name the same weights, 67 MB of them.
Shape Callers(int callers, std::int64_t rows) {
  Shape shape{1, 16, 16, rows, rows, 128};
  shape.d_model = 2048;
  shape.w_o = true;
  shape.callers = callers;
  return shape;
}

std::vector<Row> Rows() {
  const auto width = [](std::int64_t d) { return Shape{1, 8, 8, 2048, 2048, d}; };
  const auto causal = [](Shape& s) { s.causal = true; };
  return {
      {"1,8/8,2048,2048,64", kMiddle, Against::kFmaPeak, {}, ">= 0.76"},
      {"1,8/8,2048,2048,64 causal", With(kMiddle, causal), Against::kFmaPeak, {}, ">= 0.70"},
      {"1,8/8,4096,4096,128", {1, 8, 8, 4096, 4096, 128}, Against::kFmaPeak, {}, ">= 0.76"},
      {"1,32/8,2048,2048,128 causal", With({1, 32, 8, 2048, 2048, 128}, causal), Against::kFmaPeak, {}, ">= 0.72"},
      {"8,8/8,128,128,64", {8, 8, 8, 128, 128, 64}, Against::kFmaPeak, {}, ">= 0.65"},
      {"d 40", width(40), Against::kFmaPeak, {}, ">= 0.60"},
      {"d 96", width(96), Against::kFmaPeak, {}, ">= 0.70"},
      {"d 192", width(192), Against::kFmaPeak, {}, ">= 0.70"},
      {"d 256", width(256), Against::kFmaPeak, {}, ">= 0.70"},
      {"d 512", width(512), Against::kFmaPeak, {}, ">= 0.70"},
      {"1,8/8,1000,1003,80 to 1024,1024",
       {1, 8, 8, 1000, 1003, 80},
       Against::kTimeOf,
       {{1, 8, 8, 1024, 1024, 80}},
       "<= 1.10"},
      {"4,12/12,512,512,64 mask to none",
       With(kMasked, [](Shape& s) { s.mask = true; }),
       Against::kTimeOf,
       {kMasked},
       "<= 1.05"},
      {"ALiBi to plain", With(kMiddle, [](Shape& s) { s.alibi = true; }), Against::kTimeOf, {kMiddle}, "<= 1.12"},
      {"sinks to plain", With(kMiddle, [](Shape& s) { s.sinks = true; }), Against::kTimeOf, {kMiddle}, "<= 1.12"},
      {"soft cap to plain", With(kMiddle, [](Shape& s) { s.softcap = true; }), Against::kTimeOf, {kMiddle}, "<= 1.25"},
      // Logits that spread over hundreds: most weights would be subnormal or less.
      {"tiny weights to plain",
       With(kMiddle, [](Shape& sh) { sh.scale = 5.0; }),
       Against::kTimeOf,
       {kMiddle},
       "<= 1.5"},
      {"weights to none", With(kMiddle, [](Shape& s) { s.weights = true; }), Against::kTimeOf, {kMiddle}, "<= 2.2"},
      {"bfloat16 to float32",
       With(kMiddle, [](Shape& s) { s.q_dtype = s.kv_dtype = DType::kBFloat16; }),
       Against::kTimeOf,
       {kMiddle},
       "<= 1.05"},
      {"window 255 to none",
       With(kWindowed, [](Shape& s) { s.window_left = 255; }),
       Against::kTimeOf,
       {kWindowed},
       "<= 0.067"},
      {"1,1/1,131072,131072,64 to N = 8192", kLongest, Against::kRateOf, {kLong}, ">= 0.95, 64 MiB"},
      {"decode 1,32/32,1,4096,128", {1, 32, 32, 1, 4096, 128}, Against::kBandwidth, {}, ">= 0.85"},
      {"decode 1,32/8,1,16384,128", {1, 32, 8, 1, 16384, 128}, Against::kBandwidth, {}, ">= 0.85"},
      {"decode 1,8/1,1,65536,128", {1, 8, 1, 1, 65536, 128}, Against::kBandwidth, {}, ">= 0.80"},
      {"decode 1,32/8,1,16384,128 float16",
       With({1, 32, 8, 1, 16384, 128}, [](Shape& s) { s.kv_dtype = DType::kFloat16; }),
       Against::kBandwidth,
       {},
       ">= 0.80"},
      {"decode 1,32/8,1,16384,128 bfloat16",
       With({1, 32, 8, 1, 16384, 128}, [](Shape& s) { s.kv_dtype = DType::kBFloat16; }),
       Against::kBandwidth,
       {},
       ">= 0.80"},
      {"decode 16 x 100...8000,32/8,128", DecodeMix(), Against::kBandwidth, {}, ">= 0.80"},
      {"ragged 64 x 32...2048 to its parts", Ragged(), Against::kTimeOf, RaggedParts(), "<= 1.15"},
      {"projections of x 1,2048,512",
       With(kMiddle, [](Shape& s) { s.d_model = 512; }),
       Against::kProjection,
       {kMiddle},
       ">= 0.80"},
      {"8 callers of 8 rows to one by one", Callers(8, 8), Against::kTimeOf, {Callers(1, 8)}, "<= 0.60"},
      {"32 callers of 1 row to one by one", Callers(32, 1), Against::kTimeOf, {Callers(1, 1)}, "<= 0.25"},
      {"1,1/1,5,5,64 (time)", {1, 1, 1, 5, 5, 64}, Against::kFmaPeak, {}, "7 us"},
  };
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Result {
  double seconds = 0, rate = 0, limit = 0, ratio = 0, memory_mib = 0;
};

// Resident memory in MiB by its name in /proc/self/status: VmRSS, or VmHWM, the most since ResetPeak.
double ResidentMib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line) && !line.starts_with(name + ":")) continue;
  return std::atof(line.c_str() + std::min(line.size(), name.size() + 1)) / 1024;
}
void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// The workload's first run: its seconds, and the memory it took.
double FirstRun(const Workload& workload, Executor& executor, double& memory_mib) {
  malloc_trim(0);
  ResetPeak();
  const double before_mib = ResidentMib("VmRSS") + workload.packed_k_bytes() / (1 << 20);
  const double seconds = workload.Seconds(executor);
  memory_mib = std::max(0.0, ResidentMib("VmHWM") - before_mib);
  return seconds;
}

double Work(const Row& row, const Workload& workload) {
  if (row.against == Against::kBandwidth) return workload.kv_bytes();
  return row.against == Against::kProjection ? workload.projection_flops() : workload.flops();
}

Result Measure(const Row& row, Executor& executor, int pairs) {
  const Workload workload(row.shape);
  std::vector<std::unique_ptr<Workload>> others;
  for (const Shape& shape : row.others) others.push_back(std::make_unique<Workload>(shape));
  Result result;
  if (row.against == Against::kRateOf) {
    const Workload& other = *others.front();
    std::vector<double> around;
    for (int run = 0; run < pairs; ++run) around.push_back(other.Seconds(executor));
    result.seconds = FirstRun(workload, executor, result.memory_mib);
    for (int run = 0; run < pairs; ++run) around.push_back(other.Seconds(executor));
    result.rate = workload.flops() / result.seconds;
    result.limit = other.flops() / Median(around);
    result.ratio = result.rate / result.limit;
    return result;
  }
  FirstRun(workload, executor, result.memory_mib);
  std::vector<double> seconds, limits, ratios;
  for (int pair = -1; pair < pairs; ++pair) {
    double other_seconds = 0;
    for (const auto& other : others) other_seconds += other->Seconds(executor);
    double each = workload.Seconds(executor), limit = other_seconds;
    if (row.against == Against::kTimeOf) limit *= row.shape.callers;
    if (row.against == Against::kProjection) each -= other_seconds;
    if (row.against == Against::kBandwidth) limit = ReadBandwidth(executor);
    if (row.against == Against::kFmaPeak || row.against == Against::kProjection)
      limit = FmaPeak(executor).by_wall_clock;
    if (pair < 0) continue;  // warms caches, kernels and pages
    seconds.push_back(each);
    limits.push_back(limit);
    ratios.push_back(row.against == Against::kTimeOf ? each / limit : Work(row, workload) / each / limit);
  }
  result.seconds = Median(seconds);
  result.limit = Median(limits);
  result.ratio = Median(ratios);
  result.rate = Work(row, workload) / result.seconds;
  return result;
}

void Print(const Row& row, const Result& result, bool json) {
  const bool bandwidth = row.against == Against::kBandwidth, time = row.against == Against::kTimeOf;
  const char* const unit = bandwidth ? "GB/s" : "GF/s";
  if (json) {
    std::printf(
        "{\"row\":\"%s\",\"seconds\":%.9f,\"rate\":%.5g,\"unit\":\"%s\",\"ratio\":%.4f,\"ratio_to\":\"%s\",\"memory_"
        "mib\":%.1f,"
        "\"target\":\"%s\"}\n",
        row.name, result.seconds, result.rate / 1e9, unit, result.ratio,
        time                              ? "time of other"
        : row.against == Against::kRateOf ? "rate of other"
        : bandwidth                       ? "read bandwidth"
                                          : "fma peak",
        result.memory_mib, row.target);
  } else {
    const std::string limit =
        time ? std::to_string(result.limit * 1e6) + " us" : std::to_string(result.limit / 1e9) + " " + unit;
    std::printf("%-36s %12.1f us %8.1f %s %22s %8.1f MiB %8.3f  %s\n", row.name, result.seconds * 1e6,
                result.rate / 1e9, unit, limit.c_str(), result.memory_mib, result.ratio, row.target);
  }
  std::fflush(stdout);
}

int Run(int argc, char** argv) {
  bool json = false;
  int pairs = 9, threads = UsableCpus();
  std::string only;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--json") {
      json = true;
    } else if (argument == "--pairs" && has_value) {
      pairs = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--threads" && has_value) {
      threads = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--only" && has_value) {
      only = argv[++i];
    } else {
      std::fprintf(stderr, "usage: attnd_bench [--json] [--pairs N] [--threads N] [--only TEXT]\n");
      return 2;
    }
  }
  if (const absl::Status status = CheckMachine(); !status.ok()) {
    std::fprintf(stderr, "attnd_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  Executor executor(threads);
  if (!json) {
    std::printf("%d threads, %s; medians of %d pairs\n%-36s %15s %13s %22s %12s %8s  %s\n", threads,
                GetKernelInfo().instruction_set_used.c_str(), pairs, "B,Hq/Hkv,Nq,Nk,d", "time", "rate", "limit",
                "memory", "ratio", "to reach");
  }
  for (const Row& row : Rows()) {
    if (!only.empty() && std::string(row.name).find(only) == std::string::npos) continue;
    Print(row, Measure(row, executor, pairs), json);
  }
  return 0;
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) {
  // As the server does: freed buffers keep their pages.
  attnd::BufferPool::Global().SetBytesMax(std::int64_t{1} << 30);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  return attnd::bench::Run(argc, argv);
}
