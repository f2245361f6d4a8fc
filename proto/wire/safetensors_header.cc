#include "proto/wire/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attnd {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kHeaderBytesMax = 16 << 20;
constexpr std::uint64_t kSizeBytes = 8;
constexpr int kDepthMax = 4;  // of arrays and objects within each other
constexpr std::size_t kRankMax = 8;

struct ElementSize {
  absl::string_view dtype;
  std::uint64_t bytes;
};

constexpr ElementSize kElementSizes[] = {{"F32", 4},     {"F16", 2},    {"BF16", 2}, {"F64", 8}, {"I64", 8},
                                         {"I32", 4},     {"BOOL", 1},   {"U8", 1},   {"I8", 1},  {"I16", 2},
                                         {"U16", 2},     {"U32", 4},    {"U64", 8},  {"C64", 8}, {"F8_E5M2", 1},
                                         {"F8_E4M3", 1}, {"F8_E8M0", 1}};

absl::Status Bad(absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", why));
}

absl::Status BadTensor(absl::string_view name, absl::string_view tensor, absl::string_view why) {
  return Bad(name, absl::StrCat("tensor ", QuotedName(tensor), " ", why));
}

// A list of whole numbers from 0 to 2^63 - 1.
std::optional<std::vector<std::int64_t>> Integers(const Json& list) {
  if (!list.is_array()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const Json& number : list) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
    numbers.push_back(number.get<std::int64_t>());
  }
  return numbers;
}

absl::StatusOr<SafetensorsTensor> ReadTensor(absl::string_view file, const std::string& name, const Json& tensor) {
  const auto bad = [&](absl::string_view why) { return BadTensor(file, name, why); };
  if (!tensor.is_object() || tensor.size() != 3 || !tensor.contains("dtype") || !tensor.contains("shape") ||
      !tensor.contains("data_offsets")) {
    return bad("has not exactly dtype, shape and data_offsets");
  }
  if (!tensor["dtype"].is_string()) return bad("has a dtype that is not a string");
  const std::optional<std::vector<std::int64_t>> shape = Integers(tensor["shape"]);
  if (!shape || shape->size() > kRankMax) {
    return bad(absl::StrCat("has a shape that is not at most ", kRankMax, " whole numbers from 0 to 2^63 - 1"));
  }
  const std::optional<std::vector<std::int64_t>> offsets = Integers(tensor["data_offsets"]);
  if (!offsets || offsets->size() != 2 || offsets->front() > offsets->back()) {
    return bad("has data_offsets that are not two whole numbers, the second not smaller");
  }
  return SafetensorsTensor{name, tensor["dtype"].get<std::string>(), *shape,
                           static_cast<std::uint64_t>(offsets->front()), static_cast<std::uint64_t>(offsets->back())};
}

// Nothing when they are more than fit int64.
std::optional<std::uint64_t> ElementCount(const std::vector<std::int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) return std::nullopt;
  }
  return static_cast<std::uint64_t>(count);
}

absl::Status CheckSize(absl::string_view file, const SafetensorsTensor& tensor) {
  const std::string shape = absl::StrCat("shape [", absl::StrJoin(tensor.shape, ","), "]");
  const std::optional<std::uint64_t> count = ElementCount(tensor.shape);
  if (!count) return BadTensor(file, tensor.name, absl::StrCat(shape, " has more elements than fit int64"));
  const auto* const size = std::find_if(std::begin(kElementSizes), std::end(kElementSizes),
                                        [&](const ElementSize& known) { return known.dtype == tensor.dtype; });
  if (size == std::end(kElementSizes)) return absl::OkStatus();  // of an unknown type nothing more can be said
  const std::uint64_t bytes = tensor.end - tensor.begin;
  // Divided, not multiplied: the count comes from the file and may be anything.
  if (bytes % size->bytes == 0 && bytes / size->bytes == *count) return absl::OkStatus();
  return BadTensor(file, tensor.name,
                   absl::StrCat("holds ", bytes, " bytes, but ", shape, " of ", tensor.dtype, " needs ", *count,
                                " elements of ", size->bytes));
}

// Sorts them; they lie one behind the other to the end of the file.
absl::Status CheckPlaces(absl::string_view file, std::uint64_t data_bytes, std::vector<SafetensorsTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end != b.end ? a.end < b.end : a.name < b.name;
  });
  std::uint64_t at = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const auto bad = [&](absl::string_view why) { return BadTensor(file, tensor.name, why); };
    if (tensor.begin != at) return bad("overlaps the one before it, or leaves bytes between");
    if (tensor.end > data_bytes) return bad("lies beyond the end of the file");
    at = tensor.end;
    if (absl::Status status = CheckSize(file, tensor); !status.ok()) return status;
  }
  if (at != data_bytes) return Bad(file, "holds bytes that belong to no tensor");
  return absl::OkStatus();
}

}  // namespace

const SafetensorsTensor* SafetensorsHeader::Find(absl::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const SafetensorsTensor& candidate) { return candidate.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

std::string QuotedName(absl::string_view name) { return absl::StrCat("'", absl::CEscape(name.substr(0, 200)), "'"); }

std::optional<Json> ParseJsonObject(absl::string_view text, int depth_max) {
  bool twice = false, deep = false;
  std::vector<std::vector<std::string>> keys;
  const auto look = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > depth_max) deep = true;
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::key) keys.back().push_back(value.get<std::string>());
    if (event == Json::parse_event_t::object_end && !keys.empty()) {
      std::sort(keys.back().begin(), keys.back().end());
      twice |= std::adjacent_find(keys.back().begin(), keys.back().end()) != keys.back().end();
      keys.pop_back();
    }
    return !deep;  // what lies deeper is not built
  };
  Json parsed = Json::parse(text.begin(), text.end(), look, false);
  if (parsed.is_discarded() || !parsed.is_object() || twice || deep) return std::nullopt;
  return parsed;
}

absl::StatusOr<std::uint64_t> SafetensorsDataOffset(absl::string_view name, absl::string_view first,
                                                    std::uint64_t file_bytes) {
  if (file_bytes < kSizeBytes || first.size() < kSizeBytes) {
    return Bad(name, "is not a safetensors file (shorter than its first 8 bytes)");
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, first.data(), kSizeBytes);
  if (header_bytes > kHeaderBytesMax) {
    return Bad(name, absl::StrCat("is not a safetensors file, or has a header of ", header_bytes, " bytes, at most ",
                                  kHeaderBytesMax, " are read"));
  }
  if (header_bytes > file_bytes - kSizeBytes) return Bad(name, "ends inside its safetensors header");
  return kSizeBytes + header_bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view name, absl::string_view start,
                                                         std::uint64_t file_bytes) {
  const absl::StatusOr<std::uint64_t> data_offset = SafetensorsDataOffset(name, start, file_bytes);
  if (!data_offset.ok()) return data_offset.status();
  SafetensorsHeader header;
  header.data_offset = *data_offset;
  const std::optional<Json> json = ParseJsonObject(start.substr(kSizeBytes, *data_offset - kSizeBytes), kDepthMax);
  if (!json) return Bad(name, "has a safetensors header that is not a JSON object of tensors, each there once");
  for (const auto& [key, value] : json->items()) {
    if (key == "__metadata__") {
      for (const auto& [word, meaning] : value.items()) {
        if (value.is_object() && meaning.is_string()) header.metadata[word] = meaning.get<std::string>();
      }
      continue;
    }
    absl::StatusOr<SafetensorsTensor> tensor = ReadTensor(name, key, value);
    if (!tensor.ok()) return tensor.status();
    header.tensors.push_back(*std::move(tensor));
  }
  if (absl::Status status = CheckPlaces(name, file_bytes - *data_offset, header.tensors); !status.ok()) return status;
  return header;
}

std::string WriteSafetensorsHeader(const std::vector<SafetensorsTensor>& tensors,
                                   const std::map<std::string, std::string>& metadata) {
  Json json = Json::object();
  json["__metadata__"] = metadata;
  for (const SafetensorsTensor& tensor : tensors) {
    json[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + kSizeBytes - 1) / kSizeBytes * kSizeBytes, ' ');  // the data begins at a multiple of 8
  const std::uint64_t header_bytes = text.size();
  std::string start(kSizeBytes, '\0');
  std::memcpy(start.data(), &header_bytes, kSizeBytes);
  return start + text;
}

}  // namespace attnd
