#include "server/statusz.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/kernel_info.h"
#include "server/log.h"

namespace attnd::server {
namespace {

constexpr std::size_t kRunningMax = 100, kOwnersMax = 100;  // rows of the tables
constexpr std::size_t kErrorBytesMax = 200;

constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>attnd</title><style>
body{font:14px/1.4 sans-serif;margin:2em;max-width:75em}
table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}code{white-space:pre-wrap}h2{margin-top:1.5em}
svg text{font:11px sans-serif}
</style></head><body>
)";

using Cells = std::vector<std::string>;

std::string Row(const char* cell, const Cells& cells) {
  std::string row = "<tr>";
  for (const std::string& text : cells) {
    const bool number = !text.empty() && text.find_first_not_of("0123456789.-") == std::string::npos;
    absl::StrAppend(&row, "<", cell, number ? " class=\"n\">" : ">", EscapeHtml(text), "</", cell, ">");
  }
  return absl::StrCat(row, "</tr>\n");
}

std::string Table(const Cells& heads, const std::vector<Cells>& rows) {
  if (rows.empty()) return "<p>none</p>\n";
  std::string table = absl::StrCat("<table>\n", Row("th", heads));
  for (const Cells& row : rows) table += Row("td", row);
  return absl::StrCat(table, "</table>\n");
}

std::string Ms(absl::Duration duration) { return absl::StrFormat("%.2f", absl::ToDoubleMilliseconds(duration)); }

std::string Of(std::int64_t used, std::int64_t allowed) { return absl::StrCat(used, " of ", allowed); }

std::string BoundText(double seconds) {
  if (std::isinf(seconds)) return "more";
  return seconds < 1 ? absl::StrFormat("%g ms", 1000 * seconds) : absl::StrFormat("%g s", seconds);
}

// How many requests of a method took how long: bars, one a bucket, as high as their share of the fullest.
std::string Picture(absl::string_view method, const std::vector<LatencyBucket>& buckets) {
  constexpr int kBar = 40, kHigh = 80, kBelow = 34, kAbove = 16;
  std::int64_t fullest = 0;
  for (const LatencyBucket& bucket : buckets) fullest = std::max(fullest, bucket.requests);
  if (fullest == 0) return "";
  std::string svg = absl::StrFormat("<h3>%s</h3>\n<svg width=\"%d\" height=\"%d\" role=\"img\">\n", EscapeHtml(method),
                                    kBar * static_cast<int>(buckets.size()), kAbove + kHigh + kBelow);
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const std::int64_t requests = buckets[i].requests;
    const int x = kBar * static_cast<int>(i), high = static_cast<int>(requests * kHigh / fullest);
    absl::StrAppendFormat(&svg, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#478\"/>", x,
                          kAbove + kHigh - high, kBar - 2, std::max(high, requests > 0 ? 1 : 0));
    if (requests > 0)
      absl::StrAppendFormat(&svg, "<text x=\"%d\" y=\"%d\">%d</text>", x, kAbove + kHigh - high - 3, requests);
    absl::StrAppendFormat(&svg, "<text x=\"%d\" y=\"%d\">%s</text>\n", x, kAbove + kHigh + 14 + 14 * (i % 2 == 1),
                          BoundText(buckets[i].upper_bound_seconds));
  }
  return absl::StrCat(svg, "</svg>\n");
}

std::string Now(const Engine& engine) {
  const Budget& budget = engine.budget;
  return Table(
      {"what", "now"},
      {{"memory of problems, bytes", Of(budget.bytes_used(), budget.bytes_allowed())},
       {"problems that compute or wait", Of(budget.queue_problems(), engine.config.queue_problems_max)},
       {"their memory, bytes", Of(budget.queue_bytes(), engine.config.queue_bytes_max)},
       {"named tensors and weight sets, bytes", Of(engine.store_budget.bytes_used(), engine.store_budget.bytes_max())},
       {"connections", Of(engine.connections.size(), engine.config.connections_max)},
       {"streams", Of(engine.open_streams.open(), engine.config.streams_max)},
       {"jobs in the compute pool", absl::StrCat(engine.executor.jobs_in_flight())},
       {"their units", absl::StrCat(engine.executor.units_in_flight())},
       {"compute threads", absl::StrCat(engine.executor.threads())},
       {"measured, GFLOP/s", absl::StrFormat("%.1f", engine.rates.tiled / 1e9)},
       {"log level", std::string(GetLogLevel())}});
}

std::string Running(const Engine& engine, absl::Time now) {
  std::vector<Cells> rows;
  for (const RunningRequest& request : engine.requests.Running(kRunningMax)) {
    rows.push_back({std::string(request.method), request.peer, request.identity, request.shape,
                    std::string(StageName(request.stage)), Ms(now - request.began)});
  }
  return Table({"method", "peer", "identity", "problem", "stage", "since, ms"}, rows);
}

std::string Slowest(const Engine& engine, absl::Time now) {
  std::vector<Cells> rows;
  for (const EndedRequest& ended : engine.requests.Slowest(now)) {
    const RequestRecord& record = ended.record;
    rows.push_back({Ms(record.total), Ms(record.received), Ms(record.queued), Ms(record.computed), Ms(record.sent),
                    std::string(record.method), record.peer, record.identity, record.request_id, record.shape,
                    absl::StatusCodeToString(record.status.code()),
                    std::string(record.status.message().substr(0, kErrorBytesMax)),
                    absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", ended.ended, absl::UTCTimeZone())});
  }
  return Table({"total, ms", "receive", "queue", "compute", "send", "method", "peer", "identity", "request id",
                "problem", "status", "error", "ended"},
               rows);
}

// Who keeps named tensors and weight sets here, those with most first.
std::string Owners(const Engine& engine) {
  std::vector<std::pair<std::string, std::int64_t>> owners = engine.store_budget.Owners();
  std::stable_sort(owners.begin(), owners.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  if (owners.size() > kOwnersMax) owners.resize(kOwnersMax);
  std::vector<Cells> rows;
  for (const auto& [name, bytes] : owners) rows.push_back({name.empty() ? "anonymous" : name, absl::StrCat(bytes)});
  return Table({"owner", "bytes"}, rows);
}

// Every flag of this program, numbers as they are in force.
std::string Flags(const Engine& engine) {
  std::map<std::string, Cells> rows;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!absl::EndsWith(flag->Filename(), "server/flags.cc")) continue;
    rows[std::string(name)] = {std::string(name), flag->CurrentValue(), flag->DefaultValue(), flag->Help()};
  }
  for (const FlagValue& number : NumberFlags(engine.config)) rows[number.flag][1] = absl::StrCat(number.value);
  std::vector<Cells> sorted;
  for (auto& [name, cells] : rows) sorted.push_back(std::move(cells));
  return Table({"flag", "value", "default", "meaning"}, sorted);
}

}  // namespace

std::string EscapeHtml(absl::string_view text) {
  std::string escaped;
  for (const char c : EscapeText(text)) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

std::string StatusPage(const Engine& engine, absl::Time now) {
  std::string pictures;
  for (const absl::string_view method : MethodLabels()) pictures += Picture(method, engine.metrics.Latency(method));
  return absl::StrCat(kHead, "<h1>attnd ", EscapeHtml(ATTND_VERSION), engine.lifecycle.draining() ? " (draining)" : "",
                      "</h1>\n<p>", EscapeHtml(GetKernelInfo().instruction_set_used), ", up ",
                      absl::FormatDuration(absl::Floor(now - engine.started, absl::Seconds(1))), ", ",
                      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", now, absl::UTCTimeZone()), "</p>\n<h2>Levels</h2>\n",
                      Now(engine), "<h2>What runs now</h2>\n", Running(engine, now),
                      "<h2>How long requests took, from their last byte</h2>\n",
                      pictures.empty() ? "<p>none</p>\n" : pictures, "<h2>Slowest of the last ten minutes</h2>\n",
                      Slowest(engine, now), "<h2>Who keeps named tensors and weight sets</h2>\n", Owners(engine),
                      "<h2>Flags</h2>\n", Flags(engine), "</body></html>\n");
}

}  // namespace attnd::server
