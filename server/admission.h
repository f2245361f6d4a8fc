// What a problem asks of this server, whether it can ever have it, and the memory it holds while it is here.
//
// The same Demand decides for Attend, AttendStream and Plan: it comes from shapes and lengths alone, so nothing of the
// problem's size is allocated before it was admitted.
// Thread rule: every function from any thread. A Reservation has one owner.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/cost.h"
#include "core/problem.h"
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

class Admission;

// Memory taken from the budget, given back by the destructor.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept
      : admission_(std::exchange(other.admission_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept {
    std::swap(admission_, other.admission_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Reservation() { ShrinkTo(0); }

  std::int64_t bytes() const { return bytes_; }
  // Gives back what is beyond `bytes`.
  void ShrinkTo(std::int64_t bytes);

 private:
  friend class Admission;
  Admission* admission_ = nullptr;
  std::int64_t bytes_ = 0;
};

class Admission {
 public:
  Admission(const ServerConfig& config, ComputeRates rates);

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

  // CheckEver, then the memory. RESOURCE_EXHAUSTED with a retry delay when it is not free now. `held` is what the
  // caller already reserved for the same problem; it becomes part of the result.
  absl::StatusOr<Reservation> Admit(const Demand& demand, Reservation held = {});

  // Memory before anything is known but a message's size, on top of what is held.
  absl::StatusOr<Reservation> ReserveBytes(absl::string_view what, std::int64_t bytes, Reservation held = {});

  std::int64_t bytes_used() const { return used_; }
  // Counts up whenever memory is reserved or given back.
  std::int64_t changes() const { return changes_; }
  // What all problems may hold together: memory_bytes_max without gRPC's share and what the pool may keep.
  std::int64_t bytes_allowed() const { return allowed_; }

 private:
  friend class Reservation;
  absl::Status Take(absl::string_view what, std::int64_t needed, std::int64_t more);

  const ServerConfig config_;
  ComputeRates rates_;
  const std::int64_t allowed_;
  std::atomic<std::int64_t> used_{0}, changes_{0};
};

// The part of memory_bytes_max that gRPC's own buffers may hold.
std::int64_t GrpcMemoryBytes(const ServerConfig& config);

// What an answer on a stream may hold at once: the queue and the blocks that workers are filling.
std::int64_t StreamQueueBytes(const ServerConfig& config);

}  // namespace attnd::server
