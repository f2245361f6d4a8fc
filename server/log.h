// The log: lines on stderr, text or JSON. Whatever came from a peer or from gRPC is escaped here, so no line can be
// forged. Thread rule: InitLog once from main; everything else from any thread.
#pragma once

#include <cstdint>
#include <string>

#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace attnd::server {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

using LogField = std::pair<absl::string_view, std::variant<std::string, std::int64_t, double>>;

// `level`: trace, debug, info, warning, error or off. gRPC's own messages go through this log from here on.
void InitLog(LogFormat format, absl::string_view level);

void Log(LogLevel level, absl::string_view message, const std::vector<LogField>& fields = {});

// The one line of a request.
struct RequestRecord {
  absl::string_view method;
  std::string peer;
  std::string shape;  // empty where no problem was understood
  absl::Status status;
  absl::Duration queued, computed, total;
  std::int64_t request_bytes = 0, reply_bytes = 0;
  std::int64_t memory_bytes = 0;          // reserved for it
  absl::Duration worked;                  // of all compute threads
  std::int64_t slices = 0, threads = 0;   // turns that compute threads took at it, and how many different threads
  absl::Duration stopped_in, given_back;  // of one that stopped early: until no thread worked at it, and what it saved
};
void LogRequest(const RequestRecord& record);

// `text` on one line of printable ASCII: control bytes, quotes, backslashes and everything beyond ASCII are escaped.
std::string EscapeText(absl::string_view text);
// The same for the inside of a JSON string.
std::string EscapeJson(absl::string_view text);

// What a line says after its time and level.
std::string FormatLine(LogFormat format, absl::string_view message, const std::vector<LogField>& fields);

}  // namespace attnd::server
