// What the readers of our JSON files share: the words of a refusal, and that no field is unknown.
// Thread rule: pure functions.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace attnd::server {

// "identities[0].name: 7, expected a string"
absl::Status Wrong(absl::string_view path, absl::string_view came, absl::string_view expected);

// What came, in words that fit a line.
std::string Came(const nlohmann::json& value);

// An object without fields beside these. INVALID_ARGUMENT.
absl::Status CheckKeys(const nlohmann::json& object, const std::string& path,
                       std::initializer_list<absl::string_view> known);

}  // namespace attnd::server
