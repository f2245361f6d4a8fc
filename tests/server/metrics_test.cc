// What is counted is what was given: names, units, labels and values of the page, read as text.
#include "server/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace attnd::server {
namespace {

// "name{labels}" -> value.
std::map<std::string, double> Samples(const Metrics& metrics) {
  std::map<std::string, double> samples;
  for (const absl::string_view line : absl::StrSplit(metrics.Page(), '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    const std::size_t space = line.rfind(' ');
    EXPECT_TRUE(absl::SimpleAtod(line.substr(space + 1), &samples[std::string(line.substr(0, space))])) << line;
  }
  return samples;
}

RequestRecord Computed() {
  RequestRecord record;
  record.method = "Attend";
  record.received = absl::Milliseconds(3);
  record.queued = absl::Milliseconds(20);
  record.computed = absl::Milliseconds(100);
  record.sent = absl::Milliseconds(700);
  record.total = absl::Milliseconds(820);
  record.request_bytes = 5000;
  record.reply_bytes = 3000;
  record.memory_bytes = 100000;
  record.worked = absl::Milliseconds(200);
  record.flops = 4'000'000'000;
  record.tiles_run = 30;
  record.tiles_skipped = 12;
  record.weight_blocks_shared = 7;
  return record;
}

TEST(MetricsTest, AComputedProblem) {
  Metrics metrics;
  metrics.SetPeak(64e9, 2);
  metrics.Count(Computed());
  std::map<std::string, double> samples = Samples(metrics);
  EXPECT_EQ(samples.at(R"(attnd_requests_total{code="OK",identity_class="anonymous",method="Attend"})"), 1);
  EXPECT_EQ(samples.at(R"(attnd_request_duration_seconds_sum{method="Attend"})"), 0.82);
  const std::pair<const char*, double> stages[] = {
      {"receive", 0.003}, {"queue", 0.02}, {"compute", 0.1}, {"send", 0.7}};
  for (const auto& [stage, seconds] : stages) {
    const std::string labels = absl::StrCat(R"({method="Attend",stage=")", stage, "\"}");
    EXPECT_EQ(samples.at("attnd_request_stage_duration_seconds_sum" + labels), seconds);
    EXPECT_EQ(samples.at("attnd_request_stage_duration_seconds_count" + labels), 1);
  }
  EXPECT_EQ(samples.at(R"(attnd_request_size_bytes_sum{method="Attend"})"), 5000);
  EXPECT_EQ(samples.at(R"(attnd_request_size_bytes_bucket{method="Attend",le="4096"})"), 0);
  EXPECT_EQ(samples.at(R"(attnd_request_size_bytes_bucket{method="Attend",le="16384"})"), 1);
  EXPECT_EQ(samples.at(R"(attnd_reply_size_bytes_sum{method="Attend"})"), 3000);
  EXPECT_EQ(samples.at(R"(attnd_problem_memory_bytes_sum{method="Attend"})"), 100000);
  EXPECT_EQ(samples.at(R"(attnd_problem_flops_sum{method="Attend"})"), 4e9);
  EXPECT_EQ(samples.at("attnd_compute_flops_total"), 4e9);
  EXPECT_EQ(samples.at("attnd_compute_cpu_seconds_total"), 0.2);
  EXPECT_EQ(samples.at("attnd_compute_given_back_seconds_total"), 0);
  EXPECT_EQ(samples.at(R"(attnd_compute_tiles_total{outcome="run"})"), 30);
  EXPECT_EQ(samples.at(R"(attnd_compute_tiles_total{outcome="skipped"})"), 12);
  EXPECT_EQ(samples.at(R"(attnd_compute_tiles_total{outcome="cancelled"})"), 0);
  EXPECT_EQ(samples.at("attnd_compute_weight_blocks_shared_total"), 7);
  // 4e9 FLOPs in 0.1 s; in 0.2 s of CPU, of which each second could have made 32e9.
  EXPECT_EQ(samples.at("attnd_compute_flops_per_second_sum"), 4e10);
  EXPECT_DOUBLE_EQ(samples.at("attnd_compute_peak_ratio_sum"), 0.625);
  EXPECT_EQ(samples.at("attnd_compute_peak_flops_per_second"), 64e9);
  EXPECT_EQ(samples.at("attnd_compute_threads"), 2);
}

TEST(MetricsTest, AStoppedProblemCountsWhatItDidAndGaveBack) {
  Metrics metrics;
  RequestRecord record = Computed();
  record.method = "AttendStream";
  record.status = absl::CancelledError("enough");
  record.identity_class = IdentityClass::kToken;
  record.done = 0.25;
  record.tiles_skipped = 2;
  record.tiles_cancelled = 90;
  record.given_back = absl::Seconds(3);
  metrics.Count(record);
  std::map<std::string, double> samples = Samples(metrics);
  EXPECT_EQ(samples.at(R"(attnd_requests_total{code="CANCELLED",identity_class="token",method="AttendStream"})"), 1);
  EXPECT_EQ(samples.at(R"(attnd_requests_total{code="OK",identity_class="anonymous",method="AttendStream"})"), 0);
  EXPECT_EQ(samples.at("attnd_compute_flops_total"), 1e9);
  EXPECT_EQ(samples.at(R"(attnd_compute_tiles_total{outcome="cancelled"})"), 90);
  EXPECT_EQ(samples.at("attnd_compute_given_back_seconds_total"), 3);
}

TEST(MetricsTest, WhatCameToNoComputingIsNoProblem) {
  Metrics metrics;
  RequestRecord record;
  record.method = "Attend";
  record.status = absl::InvalidArgumentError("q: absent");
  record.request_bytes = 10;
  metrics.Count(record);
  std::map<std::string, double> samples = Samples(metrics);
  EXPECT_EQ(samples.at(R"(attnd_requests_total{code="INVALID_ARGUMENT",identity_class="anonymous",method="Attend"})"),
            1);
  EXPECT_EQ(samples.at(R"(attnd_request_duration_seconds_count{method="Attend"})"), 1);
  EXPECT_EQ(samples.at(R"(attnd_problem_flops_count{method="Attend"})"), 0);
  EXPECT_EQ(samples.at(R"(attnd_request_stage_duration_seconds_count{method="Attend",stage="queue"})"), 0);
}

// No peer can make a series: whatever it calls a method, however it numbers a status.
TEST(MetricsTest, LabelsComeFromClosedSets) {
  Metrics metrics;
  RequestRecord record;
  record.method = "Attend";
  metrics.Count(record);
  for (int n = 0; n < 100; ++n) {
    const std::string name = absl::StrCat("/no.such/Method", n);
    record.method = name;
    record.peer = record.identity = record.request_id = name;
    record.status = absl::Status(static_cast<absl::StatusCode>(1000 + n), name);
    metrics.Count(record);
    metrics.AdminRequest(name, 404);
  }
  std::map<std::string, double> samples = Samples(metrics);
  EXPECT_EQ(samples.at(R"(attnd_requests_total{code="UNKNOWN",identity_class="anonymous",method="other"})"), 100);
  EXPECT_EQ(samples.at(R"(attnd_admin_requests_total{code="404",path="other"})"), 100);
  EXPECT_EQ(metrics.Page().find("no.such"), std::string::npos);
}

TEST(MetricsTest, EventsAndTheirOutcomes) {
  Metrics metrics;
  metrics.ConnectionAccepted();
  metrics.ConnectionRefused(ConnectionRefusal::kDescriptors);
  for (int n = 0; n < 2; ++n) metrics.ConnectionRefused(ConnectionRefusal::kLimit);
  metrics.TlsReload(true);
  metrics.AuthReload(false);
  metrics.ReadinessCheck(true);
  std::map<std::string, double> samples = Samples(metrics);
  EXPECT_EQ(samples.at("attnd_connections_accepted_total"), 1);
  EXPECT_EQ(samples.at(R"(attnd_connections_refused_total{reason="descriptors"})"), 1);
  EXPECT_EQ(samples.at(R"(attnd_connections_refused_total{reason="limit"})"), 2);
  EXPECT_EQ(samples.at(R"(attnd_tls_reloads_total{result="ok"})"), 1);
  EXPECT_EQ(samples.at(R"(attnd_tls_reloads_total{result="failed"})"), 0);
  EXPECT_EQ(samples.at(R"(attnd_auth_reloads_total{result="failed"})"), 1);
  EXPECT_EQ(samples.at(R"(attnd_readiness_checks_total{result="ok"})"), 1);
}

TEST(MetricsTest, LevelsAreReadWhenThePageIsMade) {
  Metrics metrics;
  double level = 1;
  metrics.AddGauge("attnd_level", "A level.", [&] { return level; }, {{"of", "a"}});
  metrics.AddGauge("attnd_level", "A level.", [&] { return 2 * level; }, {{"of", "b"}});
  metrics.AddCounter("attnd_sum_total", "A sum.", [&] { return 7.0; });
  level = 21;
  std::map<std::string, double> samples = Samples(metrics);
  EXPECT_EQ(samples.at(R"(attnd_level{of="a"})"), 21);
  EXPECT_EQ(samples.at(R"(attnd_level{of="b"})"), 42);
  EXPECT_EQ(samples.at("attnd_sum_total"), 7);
  EXPECT_NE(metrics.Page().find("# TYPE attnd_sum_total counter"), std::string::npos);
}

TEST(MetricsTest, LatencyIsCountedBetweenBounds) {
  Metrics metrics;
  RequestRecord record;
  record.method = "Plan";
  for (const int milliseconds : {2, 2, 40}) {
    record.total = absl::Milliseconds(milliseconds);
    metrics.Count(record);
  }
  std::map<double, std::int64_t> counts;
  for (const LatencyBucket& bucket : metrics.Latency("Plan")) {
    if (bucket.requests > 0) counts[bucket.upper_bound_seconds] = bucket.requests;
  }
  EXPECT_EQ(counts, (std::map<double, std::int64_t>{{0.0025, 2}, {0.05, 1}}));
  EXPECT_TRUE(std::isinf(metrics.Latency("Info").back().upper_bound_seconds));
}

}  // namespace
}  // namespace attnd::server
