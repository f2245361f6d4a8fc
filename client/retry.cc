#include "client/retry.h"

#include <algorithm>

#include "client/client.h"

namespace attnd::client {

namespace {

std::int64_t Thousandths(double tokens) { return static_cast<std::int64_t>(std::clamp(tokens, 0.0, 1e9) * 1000); }

}  // namespace

RetryBudget::RetryBudget(const RetryOptions& options)
    : max_(Thousandths(options.max_tokens)), gain_(Thousandths(options.token_ratio)), tokens_(max_) {}

bool RetryBudget::OnFailure() {
  if (max_ == 0) return true;
  std::int64_t before = tokens_.load(std::memory_order_relaxed), after = 0;
  do {
    after = std::max<std::int64_t>(before - 1000, 0);
  } while (!tokens_.compare_exchange_weak(before, after, std::memory_order_relaxed));
  return after > max_ / 2;
}

void RetryBudget::OnSuccess() {
  std::int64_t before = tokens_.load(std::memory_order_relaxed);
  while (before < max_ &&
         !tokens_.compare_exchange_weak(before, std::min(before + gain_, max_), std::memory_order_relaxed)) {
  }
}

std::optional<absl::Duration> Retries::After(const absl::Status& status, absl::Time now, double uniform) {
  ++attempts_;
  const std::optional<absl::Duration> servers = RetryDelay(status);
  if (!absl::IsUnavailable(status) && !(absl::IsResourceExhausted(status) && servers.has_value())) return {};
  if (!budget_.OnFailure() || attempts_ >= options_.max_attempts) return {};
  const double jitter = std::clamp(options_.jitter, 0.0, 1.0);
  absl::Duration wait = backoff_ * (1 - jitter + 2 * jitter * uniform);
  // Callers that were all given the same delay come back apart from each other.
  if (servers.has_value()) wait = std::max(wait, *servers * (1 + jitter * uniform));
  backoff_ = std::min(backoff_ * std::max(options_.multiplier, 1.0), options_.max_backoff);
  if (now + wait >= deadline_) return {};
  return wait;
}

}  // namespace attnd::client
