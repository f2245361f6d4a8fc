// Files of the safetensors format: named tensors, one after another, with their types and shapes in JSON before them
// (proto/wire/safetensors_header.h says how and what is checked). Read: F32, F16, BF16, F64, I64, I32 (widened to
// int64), BOOL and U8 (0 and 1 only, as bool). A file may hold tensors of other types; only loading one is refused.
// Thread rule: const after Open; any number of threads may Load.
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
    std::uint64_t begin = 0, end = 0;  // in bytes of the file
  };
  std::string name_;
  std::string bytes_;
  std::vector<Member> members_;
};

}  // namespace attnd::client
