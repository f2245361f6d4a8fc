// Files that are read again when they change: certificates, the auth file. What does not hold up is refused, and what
// was live goes on.
// Thread rule: Load before anything else, then Tick from the stall watch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/auth.h"
#include "server/stall_watch.h"

namespace attnd::server {

// All of a file of at most 16 MiB. INVALID_ARGUMENT names it.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

class ReloadedFiles final : public Watched {
 public:
  // `apply` gets the files' contents in the order of `paths`, and puts them to use or says why not. `told` hears of
  // each reload.
  ReloadedFiles(std::string what, std::vector<std::string> paths,
                std::function<absl::Status(const std::vector<std::string>&)> apply, std::function<void(bool ok)> told);

  // For the first time. An error names the file.
  absl::Status Load();

  void Tick(absl::Time now) override;

 private:
  // `digest` of what was found, good or bad.
  absl::StatusOr<std::vector<std::string>> Read(TokenDigest& digest) const;

  const std::string what_;
  const std::vector<std::string> paths_;
  const std::function<absl::Status(const std::vector<std::string>&)> apply_;
  const std::function<void(bool ok)> told_;
  TokenDigest tried_{};
  absl::Time looked_at_;
};

}  // namespace attnd::server
