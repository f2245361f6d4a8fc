// Safetensors files under arbitrary bytes, with every tensor loaded. What is taken is an array whose bytes are what its
// shape asks for, and no more bytes come out than the file has (twice: int32 is widened); what is not is
// INVALID_ARGUMENT.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "client/safetensors.h"

namespace {

using attnd::client::Array;
using attnd::client::SafetensorsFile;

void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "safetensors_fuzz: %s\n", what.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const absl::StatusOr<SafetensorsFile> file =
      SafetensorsFile::Parse("fuzz", std::string(reinterpret_cast<const char*>(data), size));
  if (!file.ok()) {
    Check(absl::IsInvalidArgument(file.status()), file.status().ToString());
    return 0;
  }
  std::size_t loaded = 0;
  for (const std::string& name : file->names()) {
    const absl::StatusOr<Array> array = file->Load(name);
    if (!array.ok()) {
      Check(absl::IsInvalidArgument(array.status()), array.status().ToString());
      continue;
    }
    const absl::StatusOr<std::int64_t> bytes = attnd::client::ByteCount(array->dtype, array->shape);
    Check(bytes.ok() && *bytes == static_cast<std::int64_t>(array->bytes.size()),
          "bytes that are not those of the shape");
    loaded += array->bytes.size();
  }
  Check(loaded <= 2 * size, "tensors that overlap");
  Check(absl::IsNotFound(file->Load("no tensor has this name\n").status()), "a tensor that is not there");
  return 0;
}
