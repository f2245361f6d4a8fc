#include "server/store_budget.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

constexpr std::size_t kNameBytesMax = 64;

// OK when `bytes` fit beside what is used of `allowed`; `limit` says by what.
absl::Status Fits(absl::string_view what, std::int64_t bytes, std::int64_t used, std::int64_t allowed,
                  absl::string_view limit) {
  if (bytes > allowed) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": ", bytes, " bytes needed, ", allowed, " allowed (", limit, ")"));
  }
  if (bytes <= allowed - used) return absl::OkStatus();
  return WithRetryDelay(absl::ResourceExhaustedError(absl::StrCat(what, ": ", bytes, " bytes needed, ", used, " of ",
                                                                  allowed, " taken now (", limit, ")")),
                        kRetryDelay);
}

bool IsNameByte(char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '.' || c == '_' || c == '-'; }

}  // namespace

absl::Status CheckStoredName(absl::string_view field, absl::string_view name) {
  if (!name.empty() && name.size() <= kNameBytesMax && std::all_of(name.begin(), name.end(), IsNameByte)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(field, ": \"", absl::CEscape(name.substr(0, kNameBytesMax)), "\" of ",
                                                 name.size(), " bytes, expected 1 to ", kNameBytesMax,
                                                 " of a-z, 0-9, '.', '_' and '-'"));
}

StoreBytes::~StoreBytes() {
  if (budget_ != nullptr) budget_->GiveBack(owner_, reservation_.bytes());
}

absl::StatusOr<StoreBytes> StoreBudget::Take(absl::string_view owner, absl::string_view what, std::int64_t bytes,
                                             std::int64_t owner_bytes_max) {
  const std::string of_identity = absl::StrCat(what, ", of this identity");
  constexpr absl::string_view kFlag = "store_bytes_max", kPolicy = "store_bytes_max of its policy";
  // What can never fit asks nobody for memory.
  absl::Status status = Fits(what, bytes, 0, bytes_max_, kFlag);
  if (status.ok()) status = Fits(of_identity, bytes, 0, owner_bytes_max, kPolicy);
  if (!status.ok()) return status;
  Reservation reservation(budget_.AccountOf(absl::StrCat("stored by ", owner)));
  if (status = reservation.GrowTo(what, bytes); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  const auto held = of_owner_.find(owner);
  status = Fits(of_identity, bytes, held == of_owner_.end() ? 0 : held->second, owner_bytes_max, kPolicy);
  if (status.ok()) status = Fits(what, bytes, bytes_used_, bytes_max_, kFlag);
  if (!status.ok()) return status;
  bytes_used_ += bytes;
  if (bytes > 0) of_owner_[std::string(owner)] += bytes;
  return StoreBytes(std::move(reservation), *this, std::string(owner));
}

void StoreBudget::GiveBack(const std::string& owner, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_used_ -= bytes;
  const auto held = of_owner_.find(owner);
  if (held != of_owner_.end() && (held->second -= bytes) == 0) of_owner_.erase(held);
}

std::int64_t StoreBudget::bytes_used() const {
  const std::lock_guard lock(mutex_);
  return bytes_used_;
}

std::vector<std::pair<std::string, std::int64_t>> StoreBudget::Owners() const {
  const std::lock_guard lock(mutex_);
  return {of_owner_.begin(), of_owner_.end()};
}

}  // namespace attnd::server
