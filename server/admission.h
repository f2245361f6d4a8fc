// What a problem asks of this server, and whether it can ever have it.
//
// The same Demand decides for Attend, AttendStream and Plan: it comes from shapes and lengths alone, so nothing of the
// problem's size is allocated before it was admitted.
// Thread rule: every function from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/cost.h"
#include "core/problem.h"
#include "server/budget.h"
#include "server/flags.h"

namespace attnd::server {

// How the answer leaves: in one message, or in blocks.
enum class Delivery { kUnary, kStream };

struct NamedBytes {
  absl::string_view name;
  std::int64_t bytes = 0;
};

struct Demand {
  Delivery delivery = Delivery::kUnary;
  std::vector<NamedBytes> memory;
  std::int64_t memory_bytes = 0;   // their sum; saturates
  std::int64_t outputs_bytes = 0;  // the part that stays until the answer is sent
  std::int64_t reply_bytes = 0;
  std::int64_t tiles = 0;
  absl::Duration compute;  // with nothing else running
};

// FLOPs per second of the whole pool, measured at start.
struct ComputeRates {
  double tiled = 1e9;
  double reference = 1e8;
};

class Admission {
 public:
  Admission(const ServerConfig& config, const Budget& budget, ComputeRates rates);

  // Once they are measured; before anyone else uses this object.
  void SetRates(ComputeRates rates) { rates_ = rates; }

  Demand DemandOf(const Problem& problem, const Cost& cost, Delivery delivery) const;
  // Of FLOPs that are left after exclusion.
  absl::Duration PredictCompute(const Problem& problem, std::int64_t flops) const;

  // OK, or RESOURCE_EXHAUSTED with what is needed, what is allowed and the flag that sets it: this problem can never
  // run here.
  absl::Status CheckEver(const Demand& demand) const;

  // CheckEver, then DEADLINE_EXCEEDED with the predicted time when not even a prediction far on the bright side ends in
  // `left`.
  absl::Status CheckDeadline(const Demand& demand, absl::Duration left) const;

 private:
  const ServerConfig config_;
  const Budget& budget_;
  ComputeRates rates_;
};

// What is set aside for the tiny problem of a readiness check (readiness.h): its tensors, its packed K and its units.
constexpr std::int64_t kReadinessBytes = 1 << 20;

// What problems may hold: memory_bytes_max without gRPC's share, what the pool may keep and kReadinessBytes.
BudgetLimits LimitsOf(const ServerConfig& config);

// The part of memory_bytes_max that gRPC's own buffers may hold.
std::int64_t GrpcMemoryBytes(const ServerConfig& config);

// What an answer on a stream may hold at once: the queue and the blocks that workers are filling.
std::int64_t StreamQueueBytes(const ServerConfig& config);

}  // namespace attnd::server
