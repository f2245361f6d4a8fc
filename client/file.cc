#include "client/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::client {

namespace {

absl::Status SystemError(const std::string& path) {
  const int reason = errno;
  return absl::ErrnoToStatus(reason, path);
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return SystemError(path);
  std::string bytes;
  absl::Status status;
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) {
    status = SystemError(path);
  } else if (S_ISDIR(info.st_mode)) {
    status = absl::InvalidArgumentError(absl::StrCat(path, ": is a directory, expected a file"));
  } else {
    // One byte more than the file has shows its end without growing the buffer.
    std::size_t used = 0;
    bytes.resize(static_cast<std::size_t>(info.st_size) + 1);
    while (true) {
      const ssize_t got = ::read(descriptor, bytes.data() + used, bytes.size() - used);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) status = SystemError(path);
      if (got <= 0) break;
      used += static_cast<std::size_t>(got);
      if (used == bytes.size()) bytes.resize(2 * bytes.size());
    }
    bytes.resize(used);
  }
  ::close(descriptor);
  if (!status.ok()) return status;
  return bytes;
}

absl::StatusOr<FileWriter> FileWriter::Create(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) return SystemError(path);
  return FileWriter(path, descriptor);
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

FileWriter& FileWriter::operator=(FileWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

absl::Status FileWriter::WriteAt(std::int64_t offset, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(path_);
    bytes.remove_prefix(static_cast<std::size_t>(put));
    offset += put;
  }
  return absl::OkStatus();
}

absl::Status FileWriter::Resize(std::int64_t bytes) {
  if (::ftruncate(descriptor_, bytes) != 0) return SystemError(path_);
  return absl::OkStatus();
}

absl::Status FileWriter::Close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) return SystemError(path_);
  return absl::OkStatus();
}

absl::Status CheckWritable(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory"));
    return ::access(path.c_str(), W_OK) == 0 ? absl::OkStatus() : SystemError(path);
  }
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
  return ::access(folder.c_str(), W_OK | X_OK) == 0 ? absl::OkStatus() : SystemError(path);
}

absl::Status WriteFile(const std::string& path, absl::string_view bytes) {
  absl::StatusOr<FileWriter> file = FileWriter::Create(path);
  if (!file.ok()) return file.status();
  const absl::Status written = file->WriteAt(0, bytes);
  const absl::Status closed = file->Close();
  return written.ok() ? closed : written;
}

}  // namespace attnd::client
