// NumPy's files under arbitrary bytes: as .npy, and as .npz with every member loaded. What is taken is an array whose
// bytes are what its shape asks for, and which is the same array written and read again; what is not is
// INVALID_ARGUMENT.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "client/npy.h"
#include "client/npz.h"

namespace {

using attnd::client::Array;

void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "npy_fuzz: %s\n", what.c_str());
  std::abort();
}

void CheckArray(const absl::StatusOr<Array>& array) {
  if (!array.ok()) return Check(absl::IsInvalidArgument(array.status()), array.status().ToString());
  const absl::StatusOr<std::int64_t> bytes = attnd::client::ByteCount(array->dtype, array->shape);
  Check(bytes.ok() && *bytes == static_cast<std::int64_t>(array->bytes.size()),
        "bytes that are not those of the shape");
  const absl::StatusOr<Array> again =
      attnd::client::ParseNpy("again", attnd::client::NpyHeader(array->dtype, array->shape) + array->bytes);
  Check(again.ok() && again->dtype == array->dtype && again->shape == array->shape && again->bytes == array->bytes,
        "written and read again, an array is another one");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  CheckArray(attnd::client::ParseNpy("fuzz", bytes));
  const absl::StatusOr<attnd::client::NpzFile> file = attnd::client::NpzFile::Parse("fuzz", bytes);
  if (!file.ok()) {
    Check(absl::IsInvalidArgument(file.status()), file.status().ToString());
    return 0;
  }
  for (const std::string& name : file->names()) CheckArray(file->Load(name));
  return 0;
}
