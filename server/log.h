// The log: lines on stderr, text or JSON. Whatever came from a peer or from gRPC is escaped here, so no line can be
// forged. Thread rule: InitLog once from main; everything else from any thread, SetLogLevel too.
#pragma once

#include <cstdint>
#include <string>

#include <initializer_list>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/request_record.h"

namespace attnd::server {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// A name and its value: text, a number, or a duration in milliseconds. They point to what their maker keeps.
using LogField = std::pair<absl::string_view, std::variant<absl::string_view, std::int64_t, absl::Duration>>;
using LogFields = absl::Span<const LogField>;

// The words for levels, from the most that is written to the least.
inline constexpr absl::string_view kLogLevels[] = {"trace", "debug", "info", "warning", "error", "off"};

// `level`: one of kLogLevels. gRPC's own messages go through this log from here on.
void InitLog(LogFormat format, absl::string_view level);

// Changes what is written from here on. False, and nothing changes, when `level` is none of kLogLevels.
bool SetLogLevel(absl::string_view level);
absl::string_view GetLogLevel();

// Whether a line of this level is written now.
bool Logs(LogLevel level);

void Log(LogLevel level, absl::string_view message, LogFields fields);
inline void Log(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(level, message, LogFields(fields.begin(), fields.size()));
}

// The one line of a request; at debug for health checks that went well and calls that were reset before they asked.
void LogRequest(const RequestRecord& record);

// TLS handshakes that failed: gRPC tells of them by its log alone.
std::int64_t HandshakeFailures();

// `text` on one line of printable ASCII: control bytes, quotes, backslashes and everything beyond ASCII are escaped.
std::string EscapeText(absl::string_view text);
// The same for the inside of a JSON string.
std::string EscapeJson(absl::string_view text);

// What a line says after its time and level.
std::string FormatLine(LogFormat format, absl::string_view message, LogFields fields);

}  // namespace attnd::server
