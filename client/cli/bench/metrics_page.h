// A server's metrics page: its process's CPU and memory.
// Thread rule: pure functions, one request each.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace attnd::client {

struct ProcessFigures {
  double cpu_seconds = 0, resident_bytes = 0;
};

// "http://127.0.0.1:9090/path", by name or number. INVALID_ARGUMENT for another address, UNAVAILABLE when nobody
// answers, NOT_FOUND when the page does not say process_cpu_seconds_total and process_resident_memory_bytes.
absl::StatusOr<ProcessFigures> ReadProcessFigures(const std::string& address);
// The same of the page's text.
absl::StatusOr<ProcessFigures> ParseProcessFigures(absl::string_view page);

}  // namespace attnd::client
