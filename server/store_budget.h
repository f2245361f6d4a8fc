// The memory of what stays on the server under a name, tensors and weight sets together: at most store_bytes_max, which
// is a part of what all problems may hold, so that each byte is counted once; of one owner at most what its policy
// says. And the rule for such names.
// Thread rule: every function from any thread. A StoreBytes has one owner; the StoreBudget and its Budget outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/budget.h"

namespace attnd::server {

// 1 to 64 of a-z, 0-9, '.', '_' and '-'. INVALID_ARGUMENT, naming `field`.
absl::Status CheckStoredName(absl::string_view field, absl::string_view name);

class StoreBudget;

// Memory of one stored thing, given back by the destructor.
class StoreBytes {
 public:
  StoreBytes() = default;
  StoreBytes(StoreBytes&& other) noexcept
      : reservation_(std::move(other.reservation_)),
        budget_(std::exchange(other.budget_, nullptr)),
        owner_(std::move(other.owner_)) {}
  StoreBytes& operator=(StoreBytes&& other) noexcept {
    std::swap(reservation_, other.reservation_);
    std::swap(budget_, other.budget_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~StoreBytes();

  std::int64_t bytes() const { return reservation_.bytes(); }

 private:
  friend class StoreBudget;
  StoreBytes(Reservation reservation, StoreBudget& budget, std::string owner)
      : reservation_(std::move(reservation)), budget_(&budget), owner_(std::move(owner)) {}
  Reservation reservation_;
  StoreBudget* budget_ = nullptr;  // null: nothing taken
  std::string owner_;
};

class StoreBudget {
 public:
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  StoreBudget(Budget& budget, std::int64_t bytes_max) : budget_(budget), bytes_max_(bytes_max) {}

  // For something of `owner`, who may hold `owner_bytes_max` together, counted under the account "stored by OWNER".
  // RESOURCE_EXHAUSTED says what is needed, what is held and allowed and by which limit; with a retry delay where it
  // would fit if something else were gone.
  absl::StatusOr<StoreBytes> Take(absl::string_view owner, absl::string_view what, std::int64_t bytes,
                                  std::int64_t owner_bytes_max = kNoLimit);

  std::int64_t bytes_used() const;
  std::int64_t bytes_max() const { return bytes_max_; }
  // Owners and what each holds, by name; only those who hold anything.
  std::vector<std::pair<std::string, std::int64_t>> Owners() const;

 private:
  friend class StoreBytes;
  void GiveBack(const std::string& owner, std::int64_t bytes);

  Budget& budget_;
  const std::int64_t bytes_max_;
  mutable std::mutex mutex_;
  std::int64_t bytes_used_ = 0;                                // guarded by mutex_, like the next
  std::map<std::string, std::int64_t, std::less<>> of_owner_;  // no zeros
};

}  // namespace attnd::server
