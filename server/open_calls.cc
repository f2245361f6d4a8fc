#include "server/open_calls.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

absl::Status Full(absl::string_view what, const OpenCalls::Limit& limit) {
  return WithRetryDelay(
      absl::ResourceExhaustedError(absl::StrCat(what, ": allowed ", limit.allowed, " (", limit.flag, ")")),
      kRetryDelay);
}

}  // namespace

absl::StatusOr<OpenCalls::Place> OpenCalls::Enter(const std::string& peer, bool always) {
  const std::lock_guard lock(mutex_);
  if (all_ >= in_all_.allowed && !always) return Full(what_, in_all_);
  std::int64_t& own = open_[peer];
  if (Fills(peer, own)) return Full(absl::StrCat(what_, " of this connection"), of_connection_);
  ++own;
  ++all_;
  return Place(this, [this, peer](const void*) {
    const std::lock_guard leaving(mutex_);
    --all_;
    if (const auto found = open_.find(peer); --found->second == 0) open_.erase(found);
  });
}

bool OpenCalls::IsFull(const std::string& peer) const {
  const std::lock_guard lock(mutex_);
  const auto own = open_.find(peer);
  return own != open_.end() && Fills(peer, own->second);
}

bool OpenCalls::Fills(const std::string& peer, std::int64_t own) const {
  return own >= of_connection_.allowed && !absl::StartsWith(peer, "unix:");
}

}  // namespace attnd::server
