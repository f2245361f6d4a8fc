#include "server/admission.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/checked.h"
#include "core/tiling.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max();

// Most bytes of blocks of rows that a worker has open at a time: weights and scores of the same rows are written
// together, about kEmitBytes of each and at least one row; other outputs one tile of rows after the other.
std::int64_t OpenBlockBytes(const Problem& problem) {
  std::int64_t together = 0, largest = 0;
  for (int number = 1; number < kOutputKindCount; ++number) {
    const auto kind = static_cast<OutputKind>(number);
    if (!problem.Wants(kind)) continue;
    const std::array<std::int64_t, 4> shape = problem.OutputShape(kind);
    const std::int64_t rows = IsOfKeys(kind) ? 1 : std::min(shape[2], kProjectionRows);
    const std::int64_t bytes =
        CheckedProduct({rows, shape[3], ElementBytes(problem.OutputDType(kind))}).value_or(kMostBytes);
    if (IsOfKeys(kind)) {
      together = CheckedSum({together, std::max(bytes, kEmitBytes)}).value_or(kMostBytes);
    } else {
      largest = std::max(largest, bytes);
    }
  }
  // A row of reference mode opens them all.
  return CheckedSum({together, largest}).value_or(kMostBytes);
}

std::int64_t Sum(const std::vector<NamedBytes>& items) {
  std::int64_t sum = 0;
  for (const NamedBytes& item : items) sum = CheckedSum({sum, item.bytes}).value_or(kMostBytes);
  return sum;
}

absl::Status Never(absl::string_view what, std::int64_t needed, std::int64_t allowed, absl::string_view flag) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", needed, " needed, ", allowed, " allowed (", flag, ")"));
}

}  // namespace

std::int64_t GrpcMemoryBytes(const ServerConfig& config) {
  // One message on its way in and one on its way out must fit, or a full quota would make peers wait for each other.
  const std::int64_t least = 64 << 20;
  return std::max(
      {least, config.memory_bytes_max / 4, std::min(2 * config.message_bytes_max, config.memory_bytes_max / 2)});
}

std::int64_t StreamQueueBytes(const ServerConfig& config) { return 4 * config.block_bytes; }

BudgetLimits LimitsOf(const ServerConfig& config) {
  const std::int64_t others = GrpcMemoryBytes(config) + config.pool_bytes_max + kReadinessBytes;
  return {std::max<std::int64_t>(config.memory_bytes_max - others, 0), config.queue_problems_max,
          config.queue_bytes_max, config.connection_percent_max};
}

Admission::Admission(const ServerConfig& config, const Budget& budget, ComputeRates rates)
    : config_(config), budget_(budget), rates_(rates) {}

absl::Duration Admission::PredictCompute(const Problem& problem, std::int64_t flops) const {
  return absl::Seconds(static_cast<double>(flops) / (problem.reference ? rates_.reference : rates_.tiled));
}

Demand Admission::DemandOf(const Problem& problem, const Cost& cost, Delivery delivery) const {
  Demand demand;
  demand.delivery = delivery;
  demand.reply_bytes = cost.reply_bytes;
  demand.tiles = cost.tiles;
  demand.compute = PredictCompute(problem, cost.flops_after_exclusion);
  demand.outputs_bytes = cost.reply_bytes;
  if (delivery == Delivery::kStream) {
    const std::int64_t open = CheckedProduct({config_.threads, OpenBlockBytes(problem)}).value_or(kMostBytes);
    const std::int64_t held = CheckedSum({StreamQueueBytes(config_), open}).value_or(kMostBytes);
    demand.outputs_bytes = std::min(cost.reply_bytes, held);
  }
  const std::int64_t scratch = CheckedProduct({config_.threads, cost.scratch_bytes_per_thread}).value_or(kMostBytes);
  for (const NamedBytes& item :
       {NamedBytes{"inputs", cost.input_bytes}, NamedBytes{"packed_k", cost.packed_k_bytes},
        NamedBytes{"packed_v", cost.packed_v_bytes}, NamedBytes{"projected", cost.projected_bytes},
        NamedBytes{"row_state", cost.row_state_bytes}, NamedBytes{"scratch", scratch},
        NamedBytes{"outputs", demand.outputs_bytes}}) {
    if (item.bytes > 0) demand.memory.push_back(item);
  }
  demand.memory_bytes = Sum(demand.memory);
  return demand;
}

absl::Status Admission::CheckEver(const Demand& demand) const {
  if (demand.tiles > config_.tiles_max)
    return Never("tiles of the problem", demand.tiles, config_.tiles_max, "tiles_max");
  if (demand.delivery == Delivery::kStream && demand.reply_bytes > config_.reply_bytes_max) {
    return Never("bytes of the answer", demand.reply_bytes, config_.reply_bytes_max, "reply_bytes_max");
  }
  if (demand.delivery == Delivery::kUnary) {
    // Room for what is not tensor bytes.
    const std::int64_t allowed = std::min(config_.message_bytes_max - (std::int64_t{4} << 10), config_.reply_bytes_max);
    if (demand.reply_bytes > allowed) {
      absl::Status status =
          Never("bytes of the answer in one message", demand.reply_bytes, allowed, "message_bytes_max");
      return absl::ResourceExhaustedError(absl::StrCat(status.message(), "; AttendStream answers in blocks"));
    }
  }
  if (absl::Status status = budget_.CheckEver("bytes of memory", demand.memory_bytes); !status.ok()) return status;
  const double compute_ms = absl::ToDoubleMilliseconds(demand.compute);
  if (compute_ms > static_cast<double>(config_.compute_ms_max)) {
    const std::int64_t needed = compute_ms < 9e18 ? static_cast<std::int64_t>(compute_ms) : kMostBytes;
    return Never("milliseconds of compute, as predicted", needed, config_.compute_ms_max, "compute_ms_max");
  }
  return absl::OkStatus();
}

absl::Status Admission::CheckDeadline(const Demand& demand, absl::Duration left) const {
  if (absl::Status status = CheckEver(demand); !status.ok()) return status;
  constexpr double kOptimism = 4;  // rates are measured on a problem of middling size
  if (demand.compute / kOptimism <= left) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "the deadline leaves ", absl::ToInt64Milliseconds(std::max(left, absl::ZeroDuration())), " ms, predicted are ",
      absl::ToInt64Milliseconds(demand.compute), " ms of compute with nothing else running"));
}

}  // namespace attnd::server
