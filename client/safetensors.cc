#include "client/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/file.h"

namespace attnd::client {

namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kHeaderBytesMax = 16 << 20;
constexpr std::size_t kDepthMax = 4;  // of arrays and objects within each other
constexpr std::size_t kRankMax = 8;
constexpr std::size_t kNamesListed = 32;

struct Type {
  const char* name;
  std::int64_t bytes;
  std::optional<DType> dtype;  // nothing: such tensors may be there, but are not loaded
};

constexpr Type kTypes[] = {{"F32", 4, DType::kFloat32},  {"F16", 2, DType::kFloat16}, {"BF16", 2, DType::kBFloat16},
                           {"F64", 8, DType::kFloat64},  {"I64", 8, DType::kInt64},   {"I32", 4, DType::kInt64},
                           {"BOOL", 1, DType::kBool},    {"U8", 1, DType::kBool},     {"I8", 1, std::nullopt},
                           {"I16", 2, std::nullopt},     {"U16", 2, std::nullopt},    {"U32", 4, std::nullopt},
                           {"U64", 8, std::nullopt},     {"C64", 8, std::nullopt},    {"F8_E5M2", 1, std::nullopt},
                           {"F8_E4M3", 1, std::nullopt}, {"F8_E8M0", 1, std::nullopt}};

const Type* FindType(absl::string_view name) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& t) { return t.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

// The header's JSON, or nothing: no text of a file gets the parser to nest deeper than a header does, and a name that
// is there twice is no header.
std::optional<Json> ParseObject(absl::string_view text) {
  bool twice = false, deep = false;
  std::vector<std::vector<std::string>> keys;
  const auto look = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > static_cast<int>(kDepthMax)) deep = true;
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

std::string Quoted(absl::string_view name) { return absl::StrCat("'", absl::CEscape(name.substr(0, 200)), "'"); }

}  // namespace

absl::Status SafetensorsFile::Bad(absl::string_view why) const {
  return absl::InvalidArgumentError(absl::StrCat(name_, ": ", why));
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  return Parse(path, *std::move(bytes));
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(absl::string_view name, std::string bytes) {
  SafetensorsFile file;
  file.name_ = std::string(name);
  file.bytes_ = std::move(bytes);
  absl::Status status = file.ReadHeader();
  if (status.ok()) status = file.CheckData();
  if (!status.ok()) return status;
  return file;
}

absl::Status SafetensorsFile::ReadHeader() {
  std::uint64_t header_bytes = 0;
  if (bytes_.size() < sizeof(header_bytes)) return Bad("is not a safetensors file (shorter than its first 8 bytes)");
  std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
  if (header_bytes > kHeaderBytesMax) {
    return Bad(absl::StrCat("is not a safetensors file, or has a header of ", header_bytes, " bytes, at most ",
                            kHeaderBytesMax, " are read"));
  }
  if (header_bytes > bytes_.size() - sizeof(header_bytes)) return Bad("ends inside its safetensors header");
  data_offset_ = sizeof(header_bytes) + header_bytes;
  const std::optional<Json> header = ParseObject(absl::string_view(bytes_).substr(sizeof(header_bytes), header_bytes));
  if (!header) return Bad("has a safetensors header that is not a JSON object of tensors, each there once");
  for (const auto& [name, tensor] : header->items()) {
    if (name == "__metadata__") continue;
    Member member;
    member.name = name;
    const auto bad = [&](absl::string_view why) { return Bad(absl::StrCat("tensor ", Quoted(member.name), " ", why)); };
    if (!tensor.is_object() || tensor.size() != 3 || !tensor.contains("dtype") || !tensor.contains("shape") ||
        !tensor.contains("data_offsets")) {
      return bad("has not exactly dtype, shape and data_offsets");
    }
    if (!tensor["dtype"].is_string()) return bad("has a dtype that is not a string");
    member.dtype = tensor["dtype"].get<std::string>();
    const std::optional<std::vector<std::int64_t>> shape = Integers(tensor["shape"]);
    if (!shape || shape->size() > kRankMax) {
      return bad(absl::StrCat("has a shape that is not at most ", kRankMax, " whole numbers from 0 to 2^63 - 1"));
    }
    member.shape = *shape;
    const std::optional<std::vector<std::int64_t>> offsets = Integers(tensor["data_offsets"]);
    if (!offsets || offsets->size() != 2 || offsets->front() > offsets->back()) {
      return bad("has data_offsets that are not two whole numbers, the second not smaller");
    }
    member.begin = static_cast<std::uint64_t>(offsets->front());
    member.end = static_cast<std::uint64_t>(offsets->back());
    members_.push_back(std::move(member));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFile::CheckData() {
  std::sort(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end != b.end ? a.end < b.end : a.name < b.name;
  });
  std::uint64_t at = 0;
  for (const Member& member : members_) {
    const auto bad = [&](absl::string_view why) { return Bad(absl::StrCat("tensor ", Quoted(member.name), " ", why)); };
    if (member.begin != at) return bad("overlaps the one before it, or leaves bytes between");
    if (member.end > bytes_.size() - data_offset_) return bad("lies beyond the end of the file");
    at = member.end;
    const absl::StatusOr<std::int64_t> count = ElementCount(member.shape);
    if (!count.ok()) return bad(count.status().message());
    const Type* type = FindType(member.dtype);
    if (type == nullptr) continue;  // of an unknown type nothing more can be said
    const std::uint64_t bytes = member.end - member.begin;
    const auto element = static_cast<std::uint64_t>(type->bytes);
    // Divided, not multiplied: the count comes from the file and may be anything.
    if (bytes % element != 0 || bytes / element != static_cast<std::uint64_t>(*count)) {
      return bad(absl::StrCat("holds ", bytes, " bytes, but shape ", ShapeText(member.shape), " of ", member.dtype,
                              " needs ", *count, " elements of ", element));
    }
  }
  if (at != bytes_.size() - data_offset_) return Bad("holds bytes that belong to no tensor");
  return absl::OkStatus();
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const Member& member : members_) names.push_back(member.name);
  return names;
}

absl::StatusOr<Array> SafetensorsFile::Load(absl::string_view name) const {
  const auto member =
      std::find_if(members_.begin(), members_.end(), [&](const Member& candidate) { return candidate.name == name; });
  if (member == members_.end()) {
    std::vector<std::string> known = names();
    const bool more = known.size() > kNamesListed;
    if (more) known.resize(kNamesListed);
    return absl::NotFoundError(absl::StrCat(name_, ": has no tensor ", Quoted(name),
                                            "; there are: ", absl::StrJoin(known, ", "), more ? ", ..." : ""));
  }
  const Type* type = FindType(member->dtype);
  const auto bad = [&](absl::string_view why) { return Bad(absl::StrCat("tensor ", Quoted(name), " ", why)); };
  if (type == nullptr || !type->dtype) {
    return bad(
        absl::StrCat("has dtype ", Quoted(member->dtype), ", expected one of F32, F16, BF16, F64, I64, I32, BOOL, U8"));
  }
  Array array{*type->dtype, member->shape, bytes_.substr(data_offset_ + member->begin, member->end - member->begin)};
  if (array.dtype == DType::kBool && array.bytes.find_first_not_of(std::string("\0\1", 2)) != std::string::npos) {
    return bad(absl::StrCat("has dtype ", member->dtype, " with bytes other than 0 and 1"));
  }
  if (array.dtype == DType::kInt64 && type->bytes == 4) array.bytes = WidenToInt64(array.bytes);
  return array;
}

}  // namespace attnd::client
