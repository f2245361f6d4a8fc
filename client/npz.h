// NumPy's .npz files: a zip archive of .npy members, stored or deflated, with or without zip64.
//
// The central directory at the end says what there is; local headers are only used to find where a member's bytes
// begin, so archives written to a pipe (sizes after the data) read as well. Checked before use: every offset and size
// against the file, the promised size against what deflate can reach, CRC-32 after. Encrypted and split archives are
// refused. The format is PKWARE's APPNOTE.TXT. Thread rule: const after Open; any number of threads may Load.
#pragma once

#include <string>
#include <vector>
#include "absl/strings/string_view.h"

#include "absl/status/statusor.h"
#include "client/array.h"

namespace attnd::client {

class NpzFile {
 public:
  // INVALID_ARGUMENT for what is not such a file; errors of the system as ReadFile gives them.
  static absl::StatusOr<NpzFile> Open(const std::string& path);
  // `name` is what errors call the bytes.
  static absl::StatusOr<NpzFile> Parse(absl::string_view name, std::string bytes);

  // Array names, without ".npy", in the archive's order.
  std::vector<std::string> names() const;
  // The array of exactly that name. NOT_FOUND lists the names there are.
  absl::StatusOr<Array> Load(absl::string_view name) const;

 private:
  struct Member {
    std::string name;
    std::uint32_t flags = 0, method = 0, crc = 0;
    std::uint64_t packed_bytes = 0, bytes = 0, local_offset = 0;
  };
  absl::Status ReadDirectory();
  absl::Status ReadEntry(std::uint64_t* at, std::uint64_t end);
  absl::StatusOr<std::string> Unpack(const Member& member) const;
  absl::Status Bad(absl::string_view why) const;

  std::string name_;
  std::string bytes_;
  std::vector<Member> members_;
};

}  // namespace attnd::client
