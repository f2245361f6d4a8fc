#include "server/json_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attnd::server {
namespace {

constexpr std::size_t kCameBytesMax = 64, kKeyBytesMax = 1024;

}  // namespace

absl::Status Wrong(absl::string_view path, absl::string_view came, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", came, ", expected ", expected));
}

std::string Came(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kCameBytesMax) text = absl::StrCat(text.substr(0, kCameBytesMax), "...");
  return text;
}

absl::Status CheckKeys(const nlohmann::json& object, const std::string& path,
                       std::initializer_list<absl::string_view> known) {
  if (!object.is_object()) return Wrong(path, Came(object), "an object");
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return Wrong(absl::StrCat(path, ".", absl::CEscape(key.substr(0, kKeyBytesMax))), "not known",
                   absl::StrCat("one of ", absl::StrJoin(known, ", ")));
    }
  }
  return absl::OkStatus();
}

}  // namespace attnd::server
