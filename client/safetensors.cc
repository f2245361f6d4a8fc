#include "client/safetensors.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/file.h"
#include "proto/wire/safetensors_header.h"

namespace attnd::client {
namespace {

constexpr std::size_t kNamesListed = 32;

struct Type {
  absl::string_view name;
  std::int64_t bytes;
  DType dtype;
};

// Tensors of other types may be there, but are not loaded.
constexpr Type kTypes[] = {{"F32", 4, DType::kFloat32}, {"F16", 2, DType::kFloat16}, {"BF16", 2, DType::kBFloat16},
                           {"F64", 8, DType::kFloat64}, {"I64", 8, DType::kInt64},   {"I32", 4, DType::kInt64},
                           {"BOOL", 1, DType::kBool},   {"U8", 1, DType::kBool}};

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  return Parse(path, *std::move(bytes));
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(absl::string_view name, std::string bytes) {
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(name, bytes, bytes.size());
  if (!header.ok()) return header.status();
  SafetensorsFile file;
  file.name_ = std::string(name);
  file.bytes_ = std::move(bytes);
  for (SafetensorsTensor& tensor : header->tensors) {
    file.members_.push_back({std::move(tensor.name), std::move(tensor.dtype), std::move(tensor.shape),
                             header->data_offset + tensor.begin, header->data_offset + tensor.end});
  }
  return file;
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
    return absl::NotFoundError(absl::StrCat(name_, ": has no tensor ", QuotedName(name),
                                            "; there are: ", absl::StrJoin(known, ", "), more ? ", ..." : ""));
  }
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": tensor ", QuotedName(name), " ", why));
  };
  const auto* const type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                        [&](const Type& known) { return known.name == member->dtype; });
  if (type == std::end(kTypes)) {
    return bad(absl::StrCat("has dtype ", QuotedName(member->dtype),
                            ", expected one of F32, F16, BF16, F64, I64, I32, BOOL, U8"));
  }
  Array array{type->dtype, member->shape, bytes_.substr(member->begin, member->end - member->begin)};
  if (array.dtype == DType::kBool && array.bytes.find_first_not_of(std::string("\0\1", 2)) != std::string::npos) {
    return bad(absl::StrCat("has dtype ", member->dtype, " with bytes other than 0 and 1"));
  }
  if (array.dtype == DType::kInt64 && type->bytes == 4) array.bytes = WidenToInt64(array.bytes);
  return array;
}

}  // namespace attnd::client
