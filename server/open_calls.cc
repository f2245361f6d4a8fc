#include "server/open_calls.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

absl::Status Full(absl::string_view what, std::int64_t allowed, absl::string_view flag) {
  return WithRetryDelay(absl::ResourceExhaustedError(absl::StrCat(what, ": ", allowed, " are open (", flag, ")")),
                        kRetryDelay);
}

}  // namespace

absl::StatusOr<OpenCalls::Place> OpenCalls::Enter(const std::string& peer, bool always) {
  const std::lock_guard lock(mutex_);
  if (all_ >= in_all_ && !always) return Full("open calls", in_all_, "calls_max");
  std::int64_t& own = open_[peer];
  if (own >= of_connection_ && !absl::StartsWith(peer, "unix:")) {
    return Full("open calls of this connection", of_connection_, "twice streams_max");
  }
  ++own;
  ++all_;
  return Place(this, [this, peer](const void*) {
    const std::lock_guard leaving(mutex_);
    --all_;
    if (const auto found = open_.find(peer); --found->second == 0) open_.erase(found);
  });
}

}  // namespace attnd::server
