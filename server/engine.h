// What every call stands on, in one place: configuration, compute pool, admission, lifecycle and the stall watch; and
// the way from inputs to an admissible problem that all calls share. Thread rule: lives as long as the server; every
// member may be used from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attnd/v1/attention.pb.h"
#include "core/attention.h"
#include "core/clock.h"
#include "core/cost.h"
#include "core/executor.h"
#include "core/problem.h"
#include "server/admission.h"
#include "server/connections.h"
#include "server/flags.h"
#include "server/idle_memory.h"
#include "server/inference/model_statistics.h"
#include "server/lifecycle.h"
#include "server/metrics.h"
#include "server/open_calls.h"
#include "server/request_record.h"
#include "server/request_table.h"
#include "server/sender.h"
#include "server/stall_watch.h"
#include "server/store.h"
#include "server/store_budget.h"
#include "server/weight_files.h"
#include "server/weight_sets.h"

namespace attnd::server {

class Engine {
 public:
  // `config` is resolved (no zeros). Runs small problems to learn how fast this machine is.
  explicit Engine(const ServerConfig& config);

  // Members are destroyed from the last to the first: the pool ends before what its jobs use.
  const ServerConfig config;
  const absl::Time started = Now();
  Metrics metrics;
  RequestTable requests;
  ModelStatistics model_statistics;
  Lifecycle lifecycle;
  OpenCalls open_calls;
  OpenCalls open_streams;  // calls of many messages both ways
  Connections connections;
  std::atomic<std::int64_t> given_back_us{0};  // of all threads, what stopped problems did not take
  Budget budget;
  StoreBudget store_budget;  // of what stays under a name
  WeightSets weight_sets;
  Admission admission;
  const std::shared_ptr<TensorStore> tensors;
  StallWatch watch;
  Sender sender;
  Executor executor;
  const ComputeRates rates;
  const std::shared_ptr<IdleMemory> idle_memory;
  const std::shared_ptr<WeightFiles> weight_files;

  ProblemLimits limits() const { return {config.sequence_heads_max, config.rows_max, config.width_max}; }

  // What became of a problem's job, in the words of the log and of the reply, which has its FLOPs already; counts the
  // compute that it gave back. `predicted`: with nothing else running.
  void Note(const AttentionReport& report, absl::Duration predicted, RequestRecord& record, v1::Statistics& statistics);

  // The end of every request: its line in the log, its share of the metrics, its place among the slowest.
  void Done(const RequestRecord& record);

  // When a problem that arrived `now` must be done. `call_deadline` is infinite for a call without one.
  absl::Time Deadline(absl::Time now, absl::Time call_deadline) const;
};

// DecodeProblem for a caller, whose names are looked up in one moment.
absl::StatusOr<DecodedProblem> Decode(const Engine& engine, const std::string& owner, const v1::AttendRequest& request,
                                      DataRule rule);

// A problem that means something and is computed by this server, with its cost.
struct Understood {
  std::shared_ptr<const Problem> problem;
  Cost cost;
  Demand demand;
};

// INVALID_ARGUMENT, RESOURCE_EXHAUSTED by Engine::limits; nothing is allocated but B values a list. Admission is a
// question of its own.
absl::StatusOr<Understood> Understand(const Engine& engine, const ProblemInputs& inputs, Delivery delivery);

// "B1 Hq8 Hkv8 Nq2048 Nk2048 dk64 dv64", for logs.
std::string DescribeProblem(const Problem& problem);

}  // namespace attnd::server
