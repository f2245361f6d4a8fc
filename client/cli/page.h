// A page of HTML in one file: its data as JSON within it, and a script that draws it. It asks nobody for anything, and
// a browser that would is told not to. Thread rule: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace attnd::client {

// `script` is a file of pages/ without its .js, and finds `data` as the constant `data` and a <main> to fill; page.js,
// chart.js and page.css are in every page.
std::string MakePage(absl::string_view title, absl::string_view script, const nlohmann::ordered_json& data);

}  // namespace attnd::client
