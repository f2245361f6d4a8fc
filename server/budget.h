// What all problems hold together, and what those of each connection do: memory, and places in the queue for compute.
//
// Nothing waits here. What does not fit is refused: for ever when it never can fit, with a retry delay when it does not
// fit now. One connection gets connection_percent_max of each limit, so that it cannot keep others out; a problem that
// is its only one may take more. Thread rule: every function from any thread. A Reservation and a QueuePlace have one
// owner; the Budget outlives them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace attnd::server {

class Budget;

// What one connection, or one identity, holds.
class Account {
 public:
  Account(Budget& budget, std::int64_t bytes_max) : budget_(budget), bytes_max_(bytes_max) {}

 private:
  friend class Budget;
  friend class QueuePlace;
  friend class Reservation;
  Budget& budget_;
  std::int64_t bytes_max_;  // of its identity's policy; guarded by the budget's lock, like the next
  std::int64_t bytes_ = 0, queue_problems_ = 0, queue_bytes_ = 0;
};

// Memory taken from the budget, given back by the destructor.
class Reservation {
 public:
  Reservation() = default;
  explicit Reservation(std::shared_ptr<Account> account) : account_(std::move(account)) {}
  Reservation(Reservation&& other) noexcept
      : account_(std::move(other.account_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Reservation() { ShrinkTo(0); }

  const std::shared_ptr<Account>& account() const { return account_; }
  std::int64_t bytes() const { return bytes_; }
  // To at least `bytes` in all, for `what`. RESOURCE_EXHAUSTED leaves it as it was.
  absl::Status GrowTo(absl::string_view what, std::int64_t bytes);
  // Gives back what is beyond `bytes`.
  void ShrinkTo(std::int64_t bytes);

 private:
  absl::Status TryGrowTo(absl::string_view what, std::int64_t bytes);

  std::shared_ptr<Account> account_;
  std::int64_t bytes_ = 0;
};

// A problem's place among those that compute or wait for it, given back by the destructor.
class QueuePlace {
 public:
  QueuePlace() = default;
  QueuePlace(QueuePlace&& other) noexcept : account_(std::move(other.account_)), bytes_(other.bytes_) {}
  QueuePlace& operator=(QueuePlace&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~QueuePlace();

 private:
  friend class Budget;
  QueuePlace(std::shared_ptr<Account> account, std::int64_t bytes) : account_(std::move(account)), bytes_(bytes) {}
  std::shared_ptr<Account> account_;  // null: no place
  std::int64_t bytes_ = 0;
};

struct BudgetLimits {
  std::int64_t bytes = 0;                 // memory_bytes_max without gRPC's and the pool's shares
  std::int64_t queue_problems = 0;        // queue_problems_max
  std::int64_t queue_bytes = 0;           // queue_bytes_max
  std::int64_t connection_percent = 100;  // connection_percent_max
};

class Budget {
 public:
  explicit Budget(BudgetLimits limits) : limits_(limits) {}

  // The one of this name, with this limit of its own from here on. It lives while anyone holds it.
  std::shared_ptr<Account> AccountOf(const std::string& name,
                                     std::int64_t bytes_max = std::numeric_limits<std::int64_t>::max());

  // OK, or RESOURCE_EXHAUSTED: `what` can never have so much memory here.
  absl::Status CheckEver(absl::string_view what, std::int64_t bytes) const;

  // For a problem of `bytes` memory. RESOURCE_EXHAUSTED with a retry delay.
  absl::StatusOr<QueuePlace> Queue(std::shared_ptr<Account> account, std::int64_t bytes);

  // What all problems may hold together.
  std::int64_t bytes_allowed() const { return limits_.bytes; }
  std::int64_t bytes_used() const;
  // Of problems that compute or wait.
  std::int64_t queue_problems() const;
  std::int64_t queue_bytes() const;
  // Reservations, and places in the queue, that were refused so far. (What can never fit is seldom asked for here.)
  std::int64_t memory_refusals() const { return memory_refusals_; }
  std::int64_t queue_refusals() const { return queue_refusals_; }
  // Counts up whenever memory is reserved or given back.
  std::int64_t changes() const;

 private:
  friend class QueuePlace;
  friend class Reservation;
  std::int64_t ShareOf(std::int64_t limit) const;

  const BudgetLimits limits_;
  mutable std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Account>> accounts_;
  std::size_t accounts_sweep_ = 64;
  std::int64_t bytes_ = 0, queue_problems_ = 0, queue_bytes_ = 0, changes_ = 0;
  std::atomic<std::int64_t> memory_refusals_{0}, queue_refusals_{0};
};

}  // namespace attnd::server
