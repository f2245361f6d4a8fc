// NumPy's .npy files.
//
//   file   = "\x93NUMPY" major:u8 minor:u8 header_bytes:(u16 in version 1, u32 in 2 and 3) header data
//   header = a Python dict literal with exactly the keys 'descr', 'fortran_order' and 'shape', padded with spaces and
//   '\n'
//
// Read: f2, f4, f8, i8, b1, i4 (widened to int64), u1 (0 and 1 only, as bool), V2 or bfloat16 (how ml_dtypes writes
// bfloat16), in either byte order and in C or Fortran order; the array that comes out is little-endian and row-major.
// Anything else, and a header that does not fit its file, is refused in words that name the file. The format is
// described in NumPy's documentation of numpy.lib.format. Thread rule: pure functions.
#pragma once

#include <string>
#include "absl/strings/string_view.h"

#include "absl/status/statusor.h"
#include "client/array.h"

namespace attnd::client {

// INVALID_ARGUMENT for what is not such a file; errors of the system as ReadFile gives them.
absl::StatusOr<Array> ReadNpy(const std::string& path);
// `name` is what errors call the bytes.
absl::StatusOr<Array> ParseNpy(absl::string_view name, std::string bytes);

// Version 1 header up to where the data begins. bfloat16 is written as '<V2', as ml_dtypes does.
std::string NpyHeader(DType dtype, const std::vector<std::int64_t>& shape);
absl::Status WriteNpy(const std::string& path, const Array& array);

}  // namespace attnd::client
