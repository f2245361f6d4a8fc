#include "server/log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

constexpr std::size_t kValueBytesMax = 1024;  // a peer's text takes no more of a line
constexpr absl::Duration kWorthAWord = absl::Milliseconds(1);

std::atomic<std::int64_t> g_handshake_failures{0};
std::atomic<LogFormat> g_format{LogFormat::kText};

// Never destroyed: threads of gRPC may log until the process ends.
spdlog::logger& Logger() {
  static spdlog::logger* logger = new spdlog::logger("attnd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

void FromGrpc(gpr_log_func_args* args) {
  const LogLevel level = args->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kWarning
                         : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  if (absl::StartsWith(args->message, "Handshake failed")) ++g_handshake_failures;
  Log(level, "grpc", {{"text", args->message}});
}

// It speaks of what peers sent, and they are told.
void FromProtobuf(google::protobuf::LogLevel, const char*, int, const std::string& text) {
  Log(LogLevel::kDebug, "protobuf", {{"text", text}});
}

absl::string_view Head(absl::string_view text) { return text.substr(0, kValueBytesMax); }

bool IsPlain(absl::string_view text) {
  return text.size() <= kValueBytesMax && std::all_of(text.begin(), text.end(), [](char c) {
           return c >= 0x20 && c < 0x7f && c != '"' && c != '\\' && c != '\'';
         });
}

void AppendEscaped(std::string& line, LogFormat format, absl::string_view text) {
  if (IsPlain(text)) {
    line.append(text.data(), text.size());
  } else {
    line += format == LogFormat::kJson ? EscapeJson(text) : EscapeText(text);
  }
}

}  // namespace

void InitLog(LogFormat format, absl::string_view level) {
  g_format = format;
  spdlog::logger& logger = Logger();
  logger.set_pattern(format == LogFormat::kText ? "%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v"
                                                : R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})");
  SetLogLevel(level);
  logger.flush_on(spdlog::level::trace);
  google::protobuf::SetLogHandler(&FromProtobuf);
  gpr_set_log_function(&FromGrpc);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
}

bool SetLogLevel(absl::string_view level) {
  if (std::find(std::begin(kLogLevels), std::end(kLogLevels), level) == std::end(kLogLevels)) return false;
  Logger().set_level(spdlog::level::from_str(std::string(level)));
  return true;
}

absl::string_view GetLogLevel() {
  const auto name = spdlog::level::to_string_view(Logger().level());
  return {name.data(), name.size()};
}

std::string EscapeText(absl::string_view text) { return absl::CEscape(Head(text)); }

std::string EscapeJson(absl::string_view text) {
  std::string escaped;
  for (const char c : Head(text)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      escaped += '\\';
      escaped += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      absl::StrAppend(&escaped, "\\u", absl::Hex(byte, absl::kZeroPad4));
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string FormatLine(LogFormat format, absl::string_view message, LogFields fields) {
  const bool json = format == LogFormat::kJson;
  std::string line;
  line.reserve(512);
  if (json) line += "\"message\":\"";
  AppendEscaped(line, format, message);
  if (json) line += '"';
  for (const auto& [name, value] : fields) {
    absl::StrAppend(&line, json ? ",\"" : " ", name, json ? "\":" : "=");
    if (const auto* number = std::get_if<std::int64_t>(&value)) {
      absl::StrAppend(&line, *number);
    } else if (const auto* duration = std::get_if<absl::Duration>(&value)) {
      const std::int64_t us = absl::ToInt64Microseconds(*duration);
      absl::StrAppend(&line, us < 0 ? "-" : "", std::abs(us / 1000), ".",
                      absl::Dec(std::abs(us % 1000), absl::kZeroPad3));
    } else {
      line += '"';
      AppendEscaped(line, format, std::get<absl::string_view>(value));
      line += '"';
    }
  }
  return line;
}

bool Logs(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

std::int64_t HandshakeFailures() { return g_handshake_failures; }

void Log(LogLevel level, absl::string_view message, LogFields fields) {
  if (!Logs(level)) return;
  // As text, never as a format.
  Logger().log(ToSpdlog(level), spdlog::string_view_t(FormatLine(g_format, message, fields)));
}

void LogRequest(const RequestRecord& record) {
  // Health checks come every few seconds from many sides, and a call that was reset before its message came did
  // nothing.
  const bool quiet = (record.method == "Check" && record.status.ok()) ||
                     (absl::IsCancelled(record.status) && record.request_bytes == 0 && record.shape.empty());
  const LogLevel level = quiet ? LogLevel::kDebug : LogLevel::kInfo;
  if (!Logs(level)) return;
  const std::string code = absl::StatusCodeToString(record.status.code());
  absl::InlinedVector<LogField, 20> fields = {
      {"request_id", record.request_id},  {"peer", record.peer},      {"identity", record.identity},
      {"problem", record.shape},          {"status", code},           {"queue_ms", record.queued},
      {"compute_ms", record.computed},    {"total_ms", record.total}, {"request_bytes", record.request_bytes},
      {"reply_bytes", record.reply_bytes}};
  const auto add = [&fields](std::initializer_list<LogField> more) { fields.insert(fields.end(), more); };
  // The peer's share of the time, where it is worth a word.
  if (record.received >= kWorthAWord) add({{"receive_ms", record.received}});
  if (record.sent >= kWorthAWord) add({{"send_ms", record.sent}});
  if (!record.traceparent.empty()) add({{"traceparent", record.traceparent}});
  if (record.memory_bytes > 0) {
    add({{"memory_bytes", record.memory_bytes},
         {"worked_ms", record.worked},
         {"slices", record.slices},
         {"threads", record.threads}});
  }
  if (record.given_back > absl::ZeroDuration()) {
    add({{"stopped_in_ms", record.stopped_in}, {"given_back_ms", record.given_back}});
  }
  if (!record.status.ok()) add({{"error", record.status.message()}});
  Log(level, record.method, fields);
}

}  // namespace attnd::server
