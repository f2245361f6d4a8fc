// Files of the safetensors format: named tensors, one after another, with their types and shapes in JSON before them.
//
//   file   = header_bytes:u64 header data
//   header = a JSON object, padded with spaces: a name -> {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
//            offsets in bytes from where the data begins; "__metadata__" -> an object of strings, which is passed over
//
// All numbers are little-endian. Read: F32, F16, BF16, F64, I64, I32 (widened to int64), BOOL and U8 (0 and 1 only, as
// bool). A file may hold tensors of other types; only loading one is refused. Checked before use: the header's size,
// its text, every offset against shape, type and file; tensors neither overlap nor leave bytes between or behind them,
// as the format demands. The format is described in the safetensors project's README. Thread rule: const after Open;
// any number of threads may Load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "absl/strings/string_view.h"

#include "absl/status/statusor.h"
#include "client/array.h"

namespace attnd::client {

class SafetensorsFile {
 public:
  // INVALID_ARGUMENT for what is not such a file; errors of the system as ReadFile gives them.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  // `name` is what errors call the bytes.
  static absl::StatusOr<SafetensorsFile> Parse(absl::string_view name, std::string bytes);

  // Tensor names in the order of the data.
  std::vector<std::string> names() const;
  // The tensor of exactly that name. NOT_FOUND lists the names there are.
  absl::StatusOr<Array> Load(absl::string_view name) const;

 private:
  struct Member {
    std::string name, dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;  // in bytes from where the data begins
  };
  absl::Status ReadHeader();
  absl::Status CheckData();
  absl::Status Bad(absl::string_view why) const;

  std::string name_;
  std::string bytes_;
  std::uint64_t data_offset_ = 0;
  std::vector<Member> members_;
};

}  // namespace attnd::client
