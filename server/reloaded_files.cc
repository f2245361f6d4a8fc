#include "server/reloaded_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "server/log.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kFileBytesMax = 16 << 20;
constexpr absl::Duration kPeriod = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  const auto wrong = [&path](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return wrong(std::strerror(errno));
  const absl::Cleanup close_it = [fd] { close(fd); };
  struct stat about {};
  if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return wrong("not a file");
  if (about.st_size > kFileBytesMax) {
    return wrong(absl::StrCat(about.st_size, " bytes, expected at most ", kFileBytesMax));
  }
  std::string contents;
  char buffer[16384];
  for (ssize_t bytes = 0; (bytes = read(fd, buffer, sizeof(buffer))) != 0;) {
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return wrong(std::strerror(errno));
    contents.append(buffer, static_cast<std::size_t>(bytes));
    if (static_cast<std::int64_t>(contents.size()) > kFileBytesMax) return wrong("it grows while it is read");
  }
  return contents;
}

ReloadedFiles::ReloadedFiles(std::string what, std::vector<std::string> paths,
                             std::function<absl::Status(const std::vector<std::string>&)> apply,
                             std::function<void(bool ok)> told)
    : what_(std::move(what)), paths_(std::move(paths)), apply_(std::move(apply)), told_(std::move(told)) {}

absl::StatusOr<std::vector<std::string>> ReloadedFiles::Read(TokenDigest& digest) const {
  std::vector<std::string> contents;
  std::string all;
  absl::Status status;
  for (const std::string& path : paths_) {
    absl::StatusOr<std::string> content = ReadSmallFile(path);
    if (!content.ok()) {
      status = content.status();
      all = std::string(status.message());
      break;
    }
    absl::StrAppend(&all, content->size(), ":", *content);
    contents.push_back(*std::move(content));
  }
  digest = DigestOf(all);
  if (!status.ok()) return status;
  return contents;
}

absl::Status ReloadedFiles::Load() {
  looked_at_ = Now();
  const absl::StatusOr<std::vector<std::string>> contents = Read(tried_);
  return contents.ok() ? apply_(*contents) : contents.status();
}

void ReloadedFiles::Tick(absl::Time now) {
  if (now >= looked_at_ && now - looked_at_ < kPeriod) return;
  looked_at_ = now;
  TokenDigest digest;
  const absl::StatusOr<std::vector<std::string>> contents = Read(digest);
  if (digest == tried_) return;
  tried_ = digest;
  const absl::Status status = contents.ok() ? apply_(*contents) : contents.status();
  told_(status.ok());
  if (status.ok()) {
    Log(LogLevel::kInfo, absl::StrCat(what_, " reloaded"));
  } else {
    Log(LogLevel::kWarning, absl::StrCat(what_, " not reloaded; what was live goes on"),
        {{"error", std::string(status.message())}});
  }
}

}  // namespace attnd::server
