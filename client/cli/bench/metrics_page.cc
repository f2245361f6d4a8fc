#include "client/cli/bench/metrics_page.h"

#include <civetweb.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/flags.h"

namespace attnd::client {

namespace {

constexpr std::size_t kPageBytesMax = 16 << 20;

}  // namespace

absl::StatusOr<ProcessFigures> ParseProcessFigures(absl::string_view page) {
  ProcessFigures figures;
  bool cpu = false, memory = false;
  for (absl::string_view line : absl::StrSplit(page, '\n')) {
    if (absl::ConsumePrefix(&line, "process_cpu_seconds_total ")) {
      cpu = absl::SimpleAtod(line, &figures.cpu_seconds);
    } else if (absl::ConsumePrefix(&line, "process_resident_memory_bytes ")) {
      memory = absl::SimpleAtod(line, &figures.resident_bytes);
    }
  }
  if (cpu && memory) return figures;
  return absl::NotFoundError(
      "the metrics page does not say process_cpu_seconds_total and process_resident_memory_bytes");
}

absl::StatusOr<ProcessFigures> ReadProcessFigures(const std::string& address) {
  const absl::Status bad =
      UsageError(absl::StrCat("--metrics: '", address, "', expected an address as http://127.0.0.1:9090/metrics"));
  absl::string_view rest = address;
  if (!absl::ConsumePrefix(&rest, "http://")) return bad;
  const std::pair<std::string, std::string> parts = absl::StrSplit(rest, absl::MaxSplits('/', 1));
  const std::size_t colon = parts.first.rfind(':');
  int port = 80;
  if (colon != std::string::npos && !absl::SimpleAtoi(parts.first.substr(colon + 1), &port)) return bad;
  const std::string host = parts.first.substr(0, colon);
  if (host.empty() || absl::StrContains(parts.second, ' ')) return bad;
  char error[256] = {};
  mg_connection* connection =
      mg_download(host.c_str(), port, /*use_ssl=*/0, error, sizeof(error), "GET /%s HTTP/1.0\r\nHost: %s\r\n\r\n",
                  parts.second.c_str(), parts.first.c_str());
  if (connection == nullptr) return absl::UnavailableError(absl::StrCat("no metrics at ", address, ": ", error));
  std::string page;
  char part[8192];
  int got = 0;
  while (page.size() < kPageBytesMax && (got = mg_read(connection, part, sizeof(part))) > 0) {
    page.append(part, static_cast<std::size_t>(got));
  }
  mg_close_connection(connection);
  return ParseProcessFigures(page);
}

}  // namespace attnd::client
