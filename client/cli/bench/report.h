// What a load showed, as JSON, and what is read from that JSON alone: tables, CSV, conditions. The page of --html draws
// the same object. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/bench/driver.h"
#include "client/cli/bench/recorder.h"
#include "client/cli/check.h"

namespace attnd::client {

// What the server's metrics page says of its process.
struct ServerUse {
  double cpu = 0;  // CPUs it kept busy over the load
  double resident_bytes = 0;
};

// One load: a rate or a number of callers.
struct Point {
  std::optional<double> rate;  // requests a second of an open loop; otherwise a closed one
  std::string arrivals;        // constant or poisson
  std::int64_t concurrency = 0;
  std::int64_t threads = 1;
  Recorded recorded;
  OwnCpu cpu;
  double margin_percent = 10;  // what windows may differ by
  std::optional<ServerUse> server;
  std::optional<CheckResult> check;
};

// Why the numbers would be this process's own and not the server's: it sent requests of an open loop later than 1 ms
// and a tenth of their latency at p99, or some never, or a thread that serves many callers had no time left. OK where
// it was not so.
absl::Status JudgeClient(const Point& point);

// Why the three windows do not agree: throughput and p50 within the margin, p99 within three times that where each
// window has a thousand answers. Empty when they do.
std::vector<std::string> Disagreements(const Recorded& recorded, double margin_percent);

// One entry of "points". Without latencies where JudgeClient finds this process to be the bottleneck.
nlohmann::ordered_json ToJson(const Point& point);

// Of a whole report with its "points"; none of the tables is wider than 80 columns.
std::string ReportTables(const nlohmann::ordered_json& report);
// A header and a line a point; every number of the point that is not a list.
std::string ReportCsv(const nlohmann::ordered_json& report);

// "p99>5ms", "requests_per_second<1000", "failed>0": a percentile (p50 ... p99.99, max, mean) with a time and its unit,
// or a number of the point by its name. True for points to which it applies.
struct Condition {
  std::string text, name;
  bool above = false;
  double value = 0;  // microseconds for times

  static absl::StatusOr<Condition> Parse(absl::string_view text);
  bool Holds(const nlohmann::ordered_json& point) const;
  // What the point has of it, in people's units; nothing where it does not apply.
  std::string Got(const nlohmann::ordered_json& point) const;
};

// The percentiles that are reported.
struct NamedPercent {
  const char* name;
  double percent;
};
constexpr NamedPercent kPercents[] = {{"p50", 50}, {"p90", 90}, {"p99", 99}, {"p99.9", 99.9}, {"p99.99", 99.99}};

}  // namespace attnd::client
