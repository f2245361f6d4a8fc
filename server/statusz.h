// /statusz: one page for a reader, self-contained HTML without scripts. Whatever came from a peer is escaped.
// Thread rule: pure functions of the engine's state.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/engine.h"

namespace attnd::server {

std::string StatusPage(const Engine& engine, absl::Time now);

// Printable ASCII that means itself inside an element and inside a quoted attribute.
std::string EscapeHtml(absl::string_view text);

}  // namespace attnd::server
