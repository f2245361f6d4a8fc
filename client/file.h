// Whole files in and out; errors name the file and the system's reason.
// Thread rule: functions may be called from any thread; a FileWriter belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include "absl/strings/string_view.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace attnd::client {

// NOT_FOUND, PERMISSION_DENIED or another code by errno.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Bytes at any offset of a file that is created or emptied by Create. What was never written reads as zero.
class FileWriter {
 public:
  static absl::StatusOr<FileWriter> Create(const std::string& path);
  ~FileWriter();
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&& other) noexcept;

  absl::Status WriteAt(std::int64_t offset, absl::string_view bytes);
  // Sets the file's length.
  absl::Status Resize(std::int64_t bytes);
  // Reports what a full disk or a broken mount says only now.
  absl::Status Close();
  const std::string& path() const { return path_; }

 private:
  FileWriter(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_ = -1;
};

// Whether a file could be written there, without touching it: so that work of minutes does not end in a misspelt
// folder.
absl::Status CheckWritable(const std::string& path);
absl::Status WriteFile(const std::string& path, absl::string_view bytes);

}  // namespace attnd::client
