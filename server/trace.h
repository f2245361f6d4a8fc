// What joins a call to the lines that others write about it: x-request-id and W3C trace context.
// Thread rule: any thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace attnd::server {

// `came` when it is 1 to 128 printable ASCII characters without spaces, a new one of 16 hex digits otherwise.
std::string RequestIdFrom(absl::string_view came);

// W3C Trace Context, version 00 or later: "00-<32 hex>-<16 hex>-<2 hex>", ids not all zero. Source:
// w3.org/TR/trace-context.
bool IsTraceparent(absl::string_view text);

}  // namespace attnd::server
