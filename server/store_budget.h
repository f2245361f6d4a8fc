// The memory of what stays on the server under a name, tensors and weight sets together: at most store_bytes_max, which
// is a part of what all problems may hold, so that each byte is counted once. And the rule for such names.
// Thread rule: every function from any thread. A StoreBytes has one owner; the StoreBudget and its Budget outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/budget.h"

namespace attnd::server {

// 1 to 64 of a-z, 0-9, '.', '_' and '-'. INVALID_ARGUMENT, naming `field`.
absl::Status CheckStoredName(absl::string_view field, absl::string_view name);

// Memory of one stored thing, given back by the destructor.
class StoreBytes {
 public:
  StoreBytes() = default;
  StoreBytes(StoreBytes&& other) noexcept
      : reservation_(std::move(other.reservation_)), used_(std::move(other.used_)) {}
  StoreBytes& operator=(StoreBytes&& other) noexcept {
    std::swap(reservation_, other.reservation_);
    std::swap(used_, other.used_);
    return *this;
  }
  ~StoreBytes() {
    if (used_ != nullptr) *used_ -= reservation_.bytes();
  }

  std::int64_t bytes() const { return reservation_.bytes(); }

 private:
  friend class StoreBudget;
  StoreBytes(Reservation reservation, std::shared_ptr<std::atomic<std::int64_t>> used)
      : reservation_(std::move(reservation)), used_(std::move(used)) {}
  Reservation reservation_;
  std::shared_ptr<std::atomic<std::int64_t>> used_;  // null: nothing taken
};

class StoreBudget {
 public:
  StoreBudget(Budget& budget, std::int64_t bytes_max) : budget_(budget), bytes_max_(bytes_max) {}

  // For something of `owner`, counted under the account "stored by OWNER". RESOURCE_EXHAUSTED says what is needed, what
  // is allowed and by which flag; with a retry delay where it would fit if others were gone.
  absl::StatusOr<StoreBytes> Take(absl::string_view owner, absl::string_view what, std::int64_t bytes);

  std::int64_t bytes_used() const { return *used_; }
  std::int64_t bytes_max() const { return bytes_max_; }

 private:
  Budget& budget_;
  const std::int64_t bytes_max_;
  const std::shared_ptr<std::atomic<std::int64_t>> used_ = std::make_shared<std::atomic<std::int64_t>>(0);
};

}  // namespace attnd::server
