#include "server/budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

// OK when `more` fits beside what is used of `allowed`.
absl::Status Fits(absl::string_view what, std::int64_t used, std::int64_t more, std::int64_t allowed,
                  absl::string_view flag) {
  if (more <= allowed - used) return absl::OkStatus();
  return WithRetryDelay(absl::ResourceExhaustedError(absl::StrCat(what, ": ", more, " more needed, ", used, " of ",
                                                                  allowed, " taken now (", flag, ")")),
                        kRetryDelay);
}

constexpr absl::string_view kShareFlag = "connection_percent_max";

// Overload comes in steps. Where others hold more than kBusyPercent of the memory, what is large is refused, so that
// what is small goes on; beyond kFullPercent everything new is, so that what runs can end.
constexpr std::int64_t kBusyPercent = 85, kFullPercent = 95;
constexpr std::int64_t kLargeShare = 64;  // more than this part of the memory is large

absl::Status CheckOverload(absl::string_view what, std::int64_t bytes, std::int64_t others, std::int64_t allowed) {
  const std::int64_t percent = others / std::max<std::int64_t>(1, allowed / 100);
  if (percent < kBusyPercent || (percent < kFullPercent && bytes <= allowed / kLargeShare)) return absl::OkStatus();
  return WithRetryDelay(
      absl::ResourceExhaustedError(absl::StrCat(
          "overload: ", what, ": ", bytes, " needed while others hold ", percent, " % of ", allowed,
          percent < kFullPercent ? "; smaller problems are taken (memory_bytes_max)" : " (memory_bytes_max)")),
      kRetryDelay);
}

}  // namespace

std::shared_ptr<Account> Budget::AccountOf(const std::string& name, std::int64_t bytes_max) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<Account>& entry = accounts_[name];
  std::shared_ptr<Account> account = entry.lock();
  if (account == nullptr) entry = account = std::make_shared<Account>(*this, bytes_max);
  account->bytes_max_ = bytes_max;
  // Who is gone is cleared away when the names have doubled.
  if (accounts_.size() >= accounts_sweep_) {
    std::erase_if(accounts_, [](const auto& known) { return known.second.expired(); });
    accounts_sweep_ = 2 * accounts_.size() + 64;
  }
  return account;
}

std::int64_t Budget::ShareOf(std::int64_t limit) const {
  return std::max<std::int64_t>(
      1, limit / 100 * limits_.connection_percent + limit % 100 * limits_.connection_percent / 100);
}

absl::Status Budget::CheckEver(absl::string_view what, std::int64_t bytes) const {
  if (bytes <= limits_.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", bytes, " needed, ", limits_.bytes,
                                                   " allowed (memory_bytes_max without gRPC's and the pool's shares)"));
}

absl::StatusOr<QueuePlace> Budget::Queue(std::shared_ptr<Account> account, std::int64_t bytes) {
  constexpr absl::string_view kProblems = "problems that compute or wait",
                              kBytes = "bytes of problems that compute or wait";
  const std::lock_guard lock(mutex_);
  Account& own = *account;
  absl::Status status = Fits(kProblems, queue_problems_, 1, limits_.queue_problems, "queue_problems_max");
  if (status.ok() && queue_problems_ > 0) {
    status = Fits(kBytes, queue_bytes_, bytes, limits_.queue_bytes, "queue_bytes_max");
  }
  if (status.ok() && own.queue_problems_ > 0) {
    status = Fits(absl::StrCat(kProblems, ", of this connection"), own.queue_problems_, 1,
                  ShareOf(limits_.queue_problems), kShareFlag);
    status.Update(Fits(absl::StrCat(kBytes, ", of this connection"), own.queue_bytes_, bytes,
                       ShareOf(limits_.queue_bytes), kShareFlag));
  }
  if (!status.ok()) {
    ++queue_refusals_;
    return status;
  }
  for (std::int64_t* problems : {&queue_problems_, &own.queue_problems_}) *problems += 1;
  for (std::int64_t* sum : {&queue_bytes_, &own.queue_bytes_}) *sum += bytes;
  return QueuePlace(std::move(account), bytes);
}

QueuePlace::~QueuePlace() {
  if (account_ == nullptr) return;
  Budget& budget = account_->budget_;
  const std::lock_guard lock(budget.mutex_);
  for (std::int64_t* problems : {&budget.queue_problems_, &account_->queue_problems_}) *problems -= 1;
  for (std::int64_t* sum : {&budget.queue_bytes_, &account_->queue_bytes_}) *sum -= bytes_;
}

absl::Status Reservation::GrowTo(absl::string_view what, std::int64_t bytes) {
  absl::Status status = TryGrowTo(what, bytes);
  if (!status.ok()) ++account_->budget_.memory_refusals_;
  return status;
}

absl::Status Reservation::TryGrowTo(absl::string_view what, std::int64_t bytes) {
  const std::int64_t more = bytes - bytes_;
  if (more <= 0) return absl::OkStatus();
  Budget& budget = account_->budget_;
  absl::Status status = budget.CheckEver(what, bytes);
  if (!status.ok()) return status;
  const std::int64_t allowed = budget.limits_.bytes;
  const std::lock_guard lock(budget.mutex_);
  status = Fits(what, budget.bytes_, more, allowed, "memory_bytes_max");
  if (status.ok()) status = CheckOverload(what, bytes, budget.bytes_ - bytes_, allowed);
  if (status.ok() && account_->bytes_max_ - account_->bytes_ < more) {
    status = Fits(absl::StrCat(what, ", of this identity"), account_->bytes_, more, account_->bytes_max_,
                  "bytes_in_flight_max");
  }
  if (status.ok() && account_->bytes_ > bytes_) {
    status =
        Fits(absl::StrCat(what, ", of this connection"), account_->bytes_, more, budget.ShareOf(allowed), kShareFlag);
  }
  if (!status.ok()) return status;
  account_->bytes_ += more;
  budget.bytes_ += more;
  ++budget.changes_;
  bytes_ = bytes;
  return absl::OkStatus();
}

void Reservation::ShrinkTo(std::int64_t bytes) {
  if (bytes >= bytes_) return;
  Budget& budget = account_->budget_;
  const std::lock_guard lock(budget.mutex_);
  account_->bytes_ -= bytes_ - bytes;
  budget.bytes_ -= bytes_ - bytes;
  ++budget.changes_;
  bytes_ = bytes;
}

std::int64_t Budget::bytes_used() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::int64_t Budget::queue_problems() const {
  const std::lock_guard lock(mutex_);
  return queue_problems_;
}

std::int64_t Budget::queue_bytes() const {
  const std::lock_guard lock(mutex_);
  return queue_bytes_;
}

std::int64_t Budget::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

}  // namespace attnd::server
