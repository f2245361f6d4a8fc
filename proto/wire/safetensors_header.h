// The beginning of a file of the safetensors format: named tensors, one after another, with their types and shapes in
// JSON before them.
//
//   file   = header_bytes:u64 header data
//   header = a JSON object, padded with spaces: a name -> {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
//            offsets in bytes from where the data begins; "__metadata__" -> an object of strings
//
// All numbers are little-endian. Checked: the header's size, its text, every offset against shape, type and file;
// tensors neither overlap nor leave bytes between or behind them, as the format demands. The format is described in the
// safetensors project's README. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace attnd {

struct SafetensorsTensor {
  std::string name, dtype;  // "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // in bytes from where the data begins
};

struct SafetensorsHeader {
  std::uint64_t data_offset = 0;
  std::vector<SafetensorsTensor> tensors;       // in the order of the data
  std::map<std::string, std::string> metadata;  // those of its values that are strings

  // Null when there is none of exactly that name.
  const SafetensorsTensor* Find(absl::string_view name) const;
};

// Where the data begins, from a file's first bytes, of which there are 8 or the whole file. INVALID_ARGUMENT calls the
// file `name`, here and below.
absl::StatusOr<std::uint64_t> SafetensorsDataOffset(absl::string_view name, absl::string_view first,
                                                    std::uint64_t file_bytes);

// `start`: the file's bytes up to where the data begins, at least.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view name, absl::string_view start,
                                                         std::uint64_t file_bytes);

// A file's bytes before its data, of tensors in the order of their data, which begin and end as the format demands.
std::string WriteSafetensorsHeader(const std::vector<SafetensorsTensor>& tensors,
                                   const std::map<std::string, std::string>& metadata);

// A JSON object that nests at most `depth_max` deep, without a name that is there twice in one object.
std::optional<nlohmann::json> ParseJsonObject(absl::string_view text, int depth_max);

// A name of a file's tensor as errors print it.
std::string QuotedName(absl::string_view name);

}  // namespace attnd
