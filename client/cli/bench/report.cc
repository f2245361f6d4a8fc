#include "client/cli/bench/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/bench/arrivals.h"
#include "client/cli/flags.h"
#include "client/cli/text.h"

namespace attnd::client {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kLatenessUsMax = 1000;
constexpr double kLatenessShareMax = 0.1;  // of the latency
constexpr double kBusyMax = 0.9;           // of a thread's time
constexpr std::int64_t kWindowAnswersMin = 10, kWindowAnswersForP99 = 1000;

// Points of the percentile curve: 0, 50, 75, 87.5, ...: each halves what is left.
constexpr int kCurvePoints = 20;

Json Times(const Histogram& histogram, double per_us) {
  Json json;
  for (const NamedPercent& p : kPercents) json[p.name] = histogram.Percentile(p.percent) / per_us;
  json["max"] = static_cast<double>(histogram.max()) / per_us;
  json["mean"] = histogram.mean() / per_us;
  return json;
}

Json Curve(const Histogram& latency_ns) {
  Json curve = Json::array();
  double left = 100;
  // No further than one answer in all can tell.
  for (int p = 0; p < kCurvePoints && left / 100 * static_cast<double>(latency_ns.count()) >= 1; ++p, left /= 2) {
    curve.push_back({{"percent", 100 - left}, {"us", latency_ns.Percentile(100 - left) / 1e3}});
  }
  return curve;
}

std::string Where(const Json& point) {
  return point.contains("rate") ? Short(point["rate"].get<double>()) : absl::StrCat(point["concurrency"].get<int>());
}

double Mean(double sum, std::int64_t count) { return count == 0 ? 0 : sum / static_cast<double>(count); }

// A number of the point, or of its latency; NaN where it has neither.
double ValueOf(const std::string& name, const Json& point) {
  if (point.contains(name)) return point[name].get<double>();
  return point.contains("latency_us") ? point["latency_us"][name].get<double>() : NAN;
}

// Largest over smallest, less one, in percent.
double SpreadPercent(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *low > 0 ? (*high / *low - 1) * 100 : HUGE_VAL;
}

}  // namespace

absl::Status JudgeClient(const Point& point) {
  const Recorded& r = point.recorded;
  if (r.answered == 0) return absl::OkStatus();
  if (point.rate) {
    const double late = r.lateness_ns.Percentile(99) / 1e3, latency = r.latency_ns.Percentile(99) / 1e3;
    const double allowed = std::max(kLatenessUsMax, kLatenessShareMax * latency);
    // What was never sent although there was room for it is this process's fault too.
    if (late > allowed || (r.unsent > 0 && r.held == 0)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("attn was the bottleneck, not the server: at ", Short(*point.rate), " requests/s it sent them ",
                       HumanMicroseconds(late), " late (p99; ", HumanMicroseconds(allowed),
                       " is allowed); give it a lower --rate, smaller problems or more CPU than the server leaves it"));
    }
  } else if (point.concurrency > point.threads && point.cpu.busiest_thread > kBusyMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("attn was the bottleneck, not the server: one of its %d threads was busy for %.0f %% of the "
                        "time (%.0f %% is allowed); give it a lower --concurrency or more --threads",
                        point.threads, point.cpu.busiest_thread * 100, kBusyMax * 100));
  }
  return absl::OkStatus();
}

std::vector<std::string> Disagreements(const Recorded& recorded, double margin_percent) {
  if (recorded.stopped) return {"it was stopped before its end"};
  std::vector<std::string> found;
  std::vector<double> rate, p50, p99;
  std::int64_t fewest = INT64_MAX;
  for (const Window& window : recorded.windows) {
    fewest = std::min(fewest, window.answered);
    rate.push_back(static_cast<double>(window.answered) / window.seconds);
    p50.push_back(window.latency_ns.Percentile(50));
    p99.push_back(window.latency_ns.Percentile(99));
  }
  if (fewest < kWindowAnswersMin) {
    return {absl::StrCat("a window of three has ", fewest, " answers, fewer than ", kWindowAnswersMin)};
  }
  const auto judge = [&](absl::string_view name, const std::vector<double>& values, double margin) {
    const double spread = SpreadPercent(values);
    if (spread > margin) found.push_back(absl::StrFormat("%s differs by %.0f %%", name, spread));
  };
  judge("throughput", rate, margin_percent);
  judge("p50", p50, margin_percent);
  if (fewest >= kWindowAnswersForP99) judge("p99", p99, 3 * margin_percent);
  return found;
}

Json ToJson(const Point& point) {
  const Recorded& r = point.recorded;
  const double seconds = r.seconds();
  const absl::Status client = JudgeClient(point);
  Json json;
  json["loop"] = point.rate ? "open" : "closed";
  if (point.rate) {
    json["rate"] = *point.rate;
    json["arrivals"] = point.arrivals;
  } else {
    json["concurrency"] = point.concurrency;
  }
  json["seconds"] = seconds;
  json["stopped"] = r.stopped;
  json["requests"] = r.answered;
  json["refused"] = r.refused;
  json["failed"] = r.failures();
  json["failed_by_status"] = Json::object();
  for (const auto& [code, count] : r.failed) json["failed_by_status"][absl::StatusCodeToString(code)] = count;
  json["unsent"] = r.unsent;
  json["held"] = r.held;
  json["requests_per_second"] = static_cast<double>(r.answered) / seconds;
  json["tokens_per_second"] = r.tokens / seconds;
  json["gflops_per_second"] = r.flops / seconds / 1e9;
  json["bytes_per_second"] = r.tensor_bytes / seconds;
  json["client"] = {{"lateness_us", Times(r.lateness_ns, 1e3)},
                    {"busiest_thread", point.cpu.busiest_thread},
                    {"cpu", point.cpu.process},
                    {"bottleneck", client.ok() ? Json() : Json(std::string(client.message()))}};
  if (client.ok()) {
    json["latency_us"] = Times(r.latency_ns, 1e3);
    json["split_us_mean"] = {{"client", Mean(r.client_ns, r.answered) / 1e3},
                             {"wire", Mean(r.wire_ns, r.answered) / 1e3},
                             {"queue", Mean(r.queue_ns, r.answered) / 1e3},
                             {"compute", Mean(r.compute_ns, r.answered) / 1e3}};
    json["percentiles"] = Curve(r.latency_ns);
  }
  json["queue_us"] = Times(r.queue_us, 1);
  json["compute_us"] = Times(r.compute_us, 1);
  json["queue_us_mean"] = r.queue_us.mean();
  json["compute_us_mean"] = r.compute_us.mean();
  json["compute_us_p50"] = r.compute_us.Percentile(50);
  const std::vector<std::string> disagreements = Disagreements(r, point.margin_percent);
  json["stable"] = disagreements.empty();
  json["unstable_because"] = disagreements;
  json["margin_percent"] = point.margin_percent;
  json["windows"] = Json::array();
  for (const Window& window : r.windows) {
    if (window.seconds <= 0) continue;  // the load was stopped before it
    Json entry = {{"requests_per_second", static_cast<double>(window.answered) / window.seconds}};
    if (client.ok()) {
      entry["p50_us"] = window.latency_ns.Percentile(50) / 1e3;
      entry["p99_us"] = window.latency_ns.Percentile(99) / 1e3;
    }
    json["windows"].push_back(entry);
  }
  json["timeline"] = Json::array();
  double at = 0;
  for (const Moment& moment : r.timeline) {
    Json entry = {{"second", at},
                  {"requests_per_second", static_cast<double>(moment.answered) / r.step_seconds},
                  {"refused", moment.refused},
                  {"failed", moment.failed}};
    if (client.ok() && moment.answered > 0) {
      entry["p50_us"] = moment.latency_ns.Percentile(50) / 1e3;
      entry["p99_us"] = moment.latency_ns.Percentile(99) / 1e3;
      entry["mean_us"] = moment.latency_ns.mean() / 1e3;
    }
    json["timeline"].push_back(entry);
    at += r.step_seconds;
  }
  if (point.server) json["server"] = {{"cpu", point.server->cpu}, {"resident_bytes", point.server->resident_bytes}};
  if (point.check) {
    json["check"] = {{"rows", point.check->rows},
                     {"largest_error", point.check->output_error},
                     {"share_of_tolerance", point.check->output_share},
                     {"passed", point.check->passed()}};
  }
  return json;
}

std::string ReportTables(const Json& report) {
  const Json& points = report["points"];
  const bool open = points[0].contains("rate");
  const std::string first = open ? "rate" : "callers";
  Table latency, split, calls;
  latency.Row({first, "requests/s", "p50", "p90", "p99", "p99.9", "p99.99", "max"});
  split.Row({first, "client", "wire", "queue", "compute", "GF/s", "tensors/s", "tokens/s"});
  calls.Row({first, "late p99", "busiest", "server CPU", "memory", "windows"});
  std::string notes;
  std::int64_t answered = 0, refused = 0, failed = 0, unsent = 0;
  std::map<std::string, std::int64_t> by_status;
  for (const Json& point : points) {
    const std::string where = Where(point);
    const auto time = [](const Json& us) { return HumanMicroseconds(us.get<double>()); };
    std::vector<std::string> row = {where, absl::StrFormat("%.1f", point["requests_per_second"].get<double>())};
    std::vector<std::string> parts = {where};
    if (point.contains("latency_us")) {
      for (const char* name : {"p50", "p90", "p99", "p99.9", "p99.99", "max"}) {
        row.push_back(time(point["latency_us"][name]));
      }
      for (const auto& [name, us] : point["split_us_mean"].items()) parts.push_back(time(us));
    } else {
      row.insert(row.end(), 6, "-");
      parts.insert(parts.end(), 4, "-");
      absl::StrAppend(&notes, "no latencies at ", where, ": attn was the bottleneck\n");
    }
    latency.Row(row);
    parts.push_back(absl::StrFormat("%.3g", point["gflops_per_second"].get<double>()));
    parts.push_back(HumanBytes(point["bytes_per_second"].get<double>()));
    parts.push_back(HumanCount(std::round(point["tokens_per_second"].get<double>())));
    split.Row(parts);
    const bool seen = point.contains("server");
    calls.Row({where, time(point["client"]["lateness_us"]["p99"]),
               absl::StrFormat("%.0f %%", point["client"]["busiest_thread"].get<double>() * 100),
               seen ? absl::StrFormat("%.2f", point["server"]["cpu"].get<double>()) : "-",
               seen ? HumanBytes(point["server"]["resident_bytes"].get<double>()) : "-",
               point["stable"].get<bool>() ? "agree" : "differ"});
    answered += point["requests"].get<std::int64_t>();
    refused += point["refused"].get<std::int64_t>();
    failed += point["failed"].get<std::int64_t>();
    unsent += point["unsent"].get<std::int64_t>();
    for (const auto& [name, count] : point["failed_by_status"].items()) by_status[name] += count.get<std::int64_t>();
    for (const Json& reason : point["unstable_because"]) {
      absl::StrAppend(&notes, "not stable at ", where, ": ", reason.get<std::string>(), " (margin ",
                      Short(point["margin_percent"].get<double>()), " %)\n");
    }
    if (point.contains("check")) {
      absl::StrAppend(&notes, "checked at ", where, ": ", point["check"]["rows"].get<std::int64_t>(),
                      " rows against float64, ", Short(point["check"]["share_of_tolerance"].get<double>()),
                      " of the tolerance\n");
    }
  }
  std::string text = absl::StrCat("latency\n", latency.Text(), "\non average, and throughput\n", split.Text(),
                                  "\nattn and the server\n", calls.Text(), "\n", notes);
  if (report.contains("search")) {
    const Json& search = report["search"];
    const std::string slo = HumanMicroseconds(search["slo_us"].get<double>());
    if (search["rate"] == 0) {
      absl::StrAppend(&text, "no rate that was tried keeps p99 under ", slo, "\n");
    } else {
      absl::StrAppend(&text, "p99 stays under ", slo, " up to ", Short(search["rate"].get<double>()), " requests/s");
      if (!search["limited_by"].is_null()) absl::StrAppend(&text, "; ", search["limited_by"].get<std::string>());
      absl::StrAppend(&text, "\n");
    }
  }
  absl::StrAppend(&text, answered, " answered, ", refused, " refused, ", failed, " failed");
  std::string separator = " (";
  for (const auto& [name, count] : by_status) {
    absl::StrAppend(&text, separator, name, " ", count);
    separator = ", ";
  }
  if (!by_status.empty()) absl::StrAppend(&text, ")");
  if (unsent > 0) absl::StrAppend(&text, ", ", unsent, " due and never sent");
  return absl::StrCat(text, "\n");
}

std::string ReportCsv(const Json& report) {
  // Names in the order in which points first have them.
  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> rows;
  const auto quoted = [](const Json& value) {
    std::string text = value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump();
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    std::string out = "\"";
    for (const char c : text) absl::StrAppend(&out, c == '"' ? "\"\"" : std::string(1, c));
    return out + "\"";
  };
  const std::function<void(const Json&, const std::string&)> add = [&](const Json& value, const std::string& name) {
    if (value.is_array()) return;
    if (value.is_object()) {
      for (const auto& [key, inner] : value.items()) add(inner, name.empty() ? key : absl::StrCat(name, ".", key));
      return;
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    rows.back()[name] = quoted(value);
  };
  for (const Json& point : report["points"]) {
    rows.emplace_back();
    add(point, "");
  }
  std::string text = absl::StrCat(absl::StrJoin(names, ","), "\n");
  for (const auto& row : rows) {
    std::vector<std::string> cells;
    for (const std::string& name : names) cells.push_back(row.count(name) > 0 ? row.at(name) : "");
    absl::StrAppend(&text, absl::StrJoin(cells, ","), "\n");
  }
  return text;
}

absl::StatusOr<Condition> Condition::Parse(absl::string_view text) {
  const absl::Status bad = UsageError(
      absl::StrCat("--fail_if: '", text,
                   "', expected a name, < or > and a value, as p99>5ms, requests_per_second<1000 or failed>0"));
  const std::size_t at = text.find_first_of("<>");
  if (at == absl::string_view::npos) return bad;
  Condition condition;
  condition.text = std::string(text);
  condition.name = std::string(absl::StripAsciiWhitespace(text.substr(0, at)));
  condition.above = text[at] == '>';
  const absl::string_view value = absl::StripAsciiWhitespace(text.substr(at + 1));
  const bool time = condition.name == "max" || condition.name == "mean" ||
                    std::any_of(std::begin(kPercents), std::end(kPercents),
                                [&](const NamedPercent& p) { return condition.name == p.name; });
  if (time) {
    const absl::StatusOr<double> us = ParseMicroseconds("--fail_if", value);
    if (!us.ok()) return us.status();
    condition.value = *us;
    return condition;
  }
  static constexpr const char* kNumbers[] = {
      "requests",          "refused",           "failed",          "unsent", "requests_per_second",
      "tokens_per_second", "gflops_per_second", "bytes_per_second"};
  if (std::find(std::begin(kNumbers), std::end(kNumbers), condition.name) == std::end(kNumbers)) {
    return UsageError(absl::StrCat("--fail_if: '", condition.name, "' is neither a percentile nor one of ",
                                   absl::StrJoin(kNumbers, ", ")));
  }
  if (!absl::SimpleAtod(value, &condition.value)) return bad;
  return condition;
}

bool Condition::Holds(const Json& point) const {
  const double got = ValueOf(name, point);
  return above ? got > value : got < value;
}

std::string Condition::Got(const Json& point) const {
  const double got = ValueOf(name, point);
  if (std::isnan(got)) return "";
  return point.contains(name) ? Short(got) : HumanMicroseconds(got);
}

}  // namespace attnd::client
