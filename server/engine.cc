#include "server/engine.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/attention.h"
#include "core/clock.h"
#include "core/peak.h"
#include "server/levels.h"
#include "server/log.h"

namespace attnd::server {
namespace {

// FLOPs per second of the whole pool on one head of `n` rows and keys of width 64; the best of a few runs, the first of
// which makes kernels. By CPU time: a machine that is busy as the server starts is not slow for ever.
double MeasureRate(Executor& executor, std::int64_t n, bool reference, int runs) {
  const std::vector<float> values(static_cast<std::size_t>(n * 64), 0.5f);
  const InputTensor tensor{DType::kFloat32, {1, 1, n, 64}, reinterpret_cast<const std::byte*>(values.data())};
  ProblemInputs inputs;
  inputs.q = inputs.k = inputs.v = tensor;
  inputs.options.reference = reference;
  const absl::StatusOr<Problem> problem = Problem::Create(inputs, ProblemLimits{});
  if (!problem.ok()) return 1e9;
  absl::Duration best = absl::InfiniteDuration();
  for (int run = 0; run < runs; ++run) {
    const absl::StatusOr<DenseAnswer> answer = Attend(*problem, executor);
    if (!answer.ok()) return 1e9;
    best = std::min(best, answer->worked / executor.threads());
  }
  const double flops = 4.0 * static_cast<double>(n) * static_cast<double>(n) * 64.0;
  return flops / std::max(absl::ToDoubleSeconds(best), 1e-9);
}

ComputeRates MeasureRates(Executor& executor) {
  return {MeasureRate(executor, 512, /*reference=*/false, 3), MeasureRate(executor, 64, /*reference=*/true, 2)};
}

// What one connection may hold of `all`, at least one.
std::int64_t ConnectionShare(const ServerConfig& config, std::int64_t all) {
  return std::max<std::int64_t>(1, all * config.connection_percent_max / 100);
}

// An eighth of the shortest time that the watch must notice.
absl::Duration TickPeriod(const ServerConfig& config) {
  const std::int64_t shortest = std::min({config.send_stall_ms, config.receive_stall_ms, config.deadline_default_ms});
  return absl::Milliseconds(std::clamp<std::int64_t>(shortest / 8, 10, 250));
}

}  // namespace

Engine::Engine(const ServerConfig& resolved)
    : config(resolved),
      // Twice: a call that was cancelled ends a moment later.
      open_calls("open calls", {2 * config.streams_max, "twice streams_max"}, {config.calls_max, "calls_max"}),
      open_streams("open streams", {ConnectionShare(config, config.streams_max), "connection_percent_max"},
                   {config.streams_max, "streams_max"}),
      connections(config.streams_max),
      budget(LimitsOf(resolved)),
      store_budget(budget, resolved.store_bytes_max),
      weight_sets(store_budget, limits()),
      admission(resolved, budget, ComputeRates{}),
      tensors(std::make_shared<TensorStore>(store_budget, absl::Milliseconds(resolved.store_ttl_ms))),
      watch(TickPeriod(resolved)),
      executor(static_cast<int>(resolved.threads)),
      rates(MeasureRates(executor)),
      idle_memory(std::make_shared<IdleMemory>(BufferPool::Global(), budget, [] { malloc_trim(0); })),
      weight_files(std::make_shared<WeightFiles>(weight_sets, resolved.weights_dir)) {
  admission.SetRates(rates);
  double peak = 0;
  for (int run = 0; run < 3; ++run) peak = std::max(peak, FmaPeak(executor).by_cpu_time);
  metrics.SetPeak(peak, config.threads);
  AddLevels(*this);
  watch.Add(idle_memory);
  watch.Add(tensors);
}

absl::Time Engine::Deadline(absl::Time now, absl::Time call_deadline) const {
  const absl::Time own =
      call_deadline == absl::InfiniteFuture() ? now + absl::Milliseconds(config.deadline_default_ms) : call_deadline;
  return std::min(own, now + absl::Milliseconds(config.compute_ms_max));
}

void Engine::Note(const AttentionReport& report, absl::Duration predicted, RequestRecord& record,
                  v1::Statistics& statistics) {
  record.queued += report.queued;
  record.computed = report.computed;
  record.worked = report.worked;
  record.slices = report.slices;
  record.threads = report.workers;
  record.stopped_in = report.stopped_in;
  record.given_back = predicted * (static_cast<double>(config.threads) * report.undone);
  record.flops = statistics.flops();
  record.done = 1 - report.undone;
  record.weight_blocks_shared = report.weight_blocks_shared;
  record.tiles_run = report.tiles_run;
  // Of what was not run, what was excluded and what a stop left is known by their shares.
  const std::int64_t rest = report.tiles - report.tiles_run;
  record.tiles_cancelled =
      std::min<std::int64_t>(rest, std::llround(static_cast<double>(report.tiles) * report.undone));
  record.tiles_skipped = rest - record.tiles_cancelled;
  given_back_us += absl::ToInt64Microseconds(record.given_back);
  statistics.set_queue_us(absl::ToInt64Microseconds(record.queued));
  statistics.set_compute_us(absl::ToInt64Microseconds(report.computed));
  statistics.set_worked_us(absl::ToInt64Microseconds(report.worked));
  statistics.set_nonfinite_rows(report.nonfinite_rows);
  statistics.set_slices(report.slices);
  statistics.set_threads_used(report.workers);
}

void Engine::Done(const RequestRecord& record) {
  metrics.Count(record);
  requests.Ended(record, Now());
  LogRequest(record);
}

absl::StatusOr<DecodedProblem> Decode(const Engine& engine, const std::string& owner, const v1::AttendRequest& request,
                                      DataRule rule) {
  StoredNames names(*engine.tensors, owner);
  absl::StatusOr<DecodedProblem> decoded = DecodeProblem(request, rule, &names);
  if (!decoded.ok()) return decoded;
  if (absl::Status status = UseWeightSet(engine.weight_sets, request, *decoded); !status.ok()) return status;
  return decoded;
}

absl::StatusOr<Understood> Understand(const Engine& engine, const ProblemInputs& inputs, Delivery delivery) {
  absl::StatusOr<Problem> problem = Problem::Create(inputs, engine.limits());
  if (!problem.ok()) return problem.status();
  Understood understood;
  understood.problem = std::make_shared<const Problem>(*std::move(problem));
  const absl::StatusOr<Cost> cost = EstimateCost(*understood.problem);
  if (!cost.ok()) return cost.status();
  understood.cost = *cost;
  understood.demand = engine.admission.DemandOf(*understood.problem, *cost, delivery);
  return understood;
}

std::string DescribeProblem(const Problem& problem) {
  return absl::StrCat("B", problem.batch, " Hq", problem.q_heads, " Hkv", problem.kv_heads, " Nq", problem.q_rows,
                      " Nk", problem.kv_rows, " dk", problem.d_k, " dv", problem.d_v);
}

}  // namespace attnd::server
