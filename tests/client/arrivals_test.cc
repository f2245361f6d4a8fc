// The schedule of an open loop, sweeps and the search, all without a server: right values are closed forms.
#include "client/cli/bench/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "client/cli/bench/measure.h"
#include "client/cli/bench/pacer.h"
#include "client/cli/bench/recorder.h"
#include "client/cli/flags.h"

namespace attnd::client {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(ArrivalsTest, AConstantRateHasNoErrorThatGrows) {
  Arrivals arrivals = Arrivals::Constant(3);
  std::int64_t last = 0;
  for (int n = 0; n <= 3'000'000; ++n) last = arrivals.Next();
  EXPECT_NEAR(static_cast<double>(last), 1e6 * kSecond, 2000);  // a double's own rounding at 1e15
}

// Kolmogorov and Smirnov's distance between the gaps and the exponential distribution: above 1.63 / sqrt(n) one sample
// in a hundred; and the number in each second, whose variance is its mean.
TEST(ArrivalsTest, PoissonGapsAreExponentialAndCountsHaveTheMeanAsVariance) {
  constexpr int kCount = 100'000;
  constexpr double kRate = 50;
  Arrivals arrivals = Arrivals::Poisson(kRate, 1);
  std::vector<double> gaps;
  std::vector<double> counts;
  std::int64_t before = 0;
  for (int n = 0; n < kCount; ++n) {
    const std::int64_t due = arrivals.Next();
    ASSERT_GE(due, before);
    gaps.push_back(static_cast<double>(due - before) / 1e9);
    before = due;
    const auto second = static_cast<std::size_t>(due / kSecond);
    if (counts.size() <= second) counts.resize(second + 1);
    ++counts[second];
  }
  std::sort(gaps.begin(), gaps.end());
  double distance = 0;
  for (int n = 0; n < kCount; ++n) {
    const double share = 1 - std::exp(-kRate * gaps[static_cast<std::size_t>(n)]);
    distance = std::max({distance, std::fabs(share - n / double{kCount}), std::fabs(share - (n + 1) / double{kCount})});
  }
  EXPECT_LT(distance, 1.63 / std::sqrt(kCount));
  counts.pop_back();  // the last second is not whole
  double mean = 0, variance = 0;
  for (const double count : counts) mean += count / static_cast<double>(counts.size());
  for (const double count : counts) variance += (count - mean) * (count - mean) / static_cast<double>(counts.size());
  EXPECT_NEAR(mean, kRate, 4 * std::sqrt(kRate / static_cast<double>(counts.size())));
  EXPECT_NEAR(variance / mean, 1, 4 * std::sqrt(2 / static_cast<double>(counts.size())));
}

TEST(ArrivalsTest, SweepsStepAddOrMultiplyAndHaveBothEnds) {
  EXPECT_THAT(*ParseSweep("--rate", "250", 1), testing::ElementsAre(250));
  EXPECT_THAT(*ParseSweep("--rate", "5,3.5", 1), testing::ElementsAre(5, 3.5));
  EXPECT_THAT(*ParseSweep("--rate", "100:400:100", 1), testing::ElementsAre(100, 200, 300, 400));
  EXPECT_THAT(*ParseSweep("--rate", "1:10:x2", 1), testing::ElementsAre(1, 2, 4, 8));
  for (const char* wrong : {"", "x", "1:2", "2:1:1", "1:2:0", "1:2:x1", "0", "1:2:3:4", "1:1e9:1", "inf", "nan"}) {
    EXPECT_TRUE(IsUsageError(ParseSweep("--rate", wrong, 1).status())) << wrong;
  }
  EXPECT_EQ(*ParseMicroseconds("--slo", "5ms"), 5000);
  EXPECT_EQ(*ParseMicroseconds("--slo", "2.5s"), 2.5e6);
  EXPECT_EQ(*ParseMicroseconds("--slo", "40us"), 40);
  for (const char* wrong : {"5", "ms", "-1ms", "0s", "5 h"}) {
    EXPECT_TRUE(IsUsageError(ParseMicroseconds("--slo", wrong).status())) << wrong;
  }
}

// A clock that only waiting moves.
struct PaperClock : ScheduleClock {
  std::int64_t now = 0;
  std::int64_t Now() override { return now; }
  void WaitUntil(std::int64_t ns) override { now = std::max(now, ns); }
};

// One server on paper, which answers in turn: each takes `service_ns`, and none begins between stall_from and stall_to.
struct PaperServer : Sender {
  PaperServer(PaperClock& paper, Recorder& to, std::int64_t service)
      : clock(paper), recorder(to), service_ns(service) {}
  bool WaitForRoom() override { return false; }
  bool Stopped() override { return recorder.stopped(); }
  void Send(std::int64_t due_ns) override {
    std::int64_t begin = std::max(clock.now, free_ns);
    if (begin >= stall_from && begin < stall_to) begin = stall_to;
    free_ns = begin + service_ns;
    Outcome outcome;
    outcome.due_ns = due_ns;
    outcome.sent_ns = clock.now;
    outcome.done_ns = free_ns;
    recorder.Done(outcome);
    clock.now += send_ns;
  }
  void Late(std::int64_t due_ns, std::int64_t room_ns, std::int64_t sent_ns) override {
    recorder.Late(due_ns, sent_ns - std::max(due_ns, room_ns), room_ns > due_ns);
  }
  PaperClock& clock;
  Recorder& recorder;
  std::int64_t service_ns, free_ns = 0, stall_from = 0, stall_to = 0, send_ns = 0;
};

// 1000 requests, ten milliseconds apart; the server stands still from 5 s to 6 s. The hundred that were due meanwhile
// wait 1000, 990, ... 10 ms, and that is what the percentiles say: p99 is the tenth longest from above, p95 the
// fiftieth.
TEST(PacerTest, AStallShowsInEveryRequestThatWasDueMeanwhile) {
  PaperClock clock;
  Recorder recorder(0, 10 * kSecond);
  PaperServer server(clock, recorder, 0);
  server.stall_from = 5 * kSecond;
  server.stall_to = 6 * kSecond;
  EXPECT_EQ(Pace(Arrivals::Constant(100), clock, 0, 10 * kSecond, kSecond, server), 0);
  const Recorded r = recorder.Snapshot();
  EXPECT_EQ(r.answered, 1000);
  EXPECT_EQ(r.latency_ns.max(), kSecond);
  EXPECT_NEAR(r.latency_ns.Percentile(99), 0.90e9, 0.01 * 0.90e9);
  EXPECT_NEAR(r.latency_ns.Percentile(95), 0.50e9, 0.01 * 0.50e9);
  EXPECT_EQ(r.latency_ns.Percentile(90), 0);
  EXPECT_EQ(r.lateness_ns.max(), 0);
  // It is in the second window of three (and the timeline's steps of 5 s to 6 s) and nowhere else.
  EXPECT_EQ(r.windows[0].latency_ns.max(), 0);
  EXPECT_EQ(r.windows[1].latency_ns.max(), kSecond);
  EXPECT_EQ(r.windows[2].latency_ns.max(), 0);
  EXPECT_FALSE(Disagreements(r, 10).empty());
}

TEST(PacerTest, ALoadThatTakesLongerToSendThanToBeDueIsTheClientsFault) {
  PaperClock clock;
  Recorder recorder(0, 2 * kSecond);
  PaperServer server(clock, recorder, 0);
  server.send_ns = 15'000'000;  // for each of a hundred a second
  const std::int64_t unsent = Pace(Arrivals::Constant(100), clock, 0, 2 * kSecond, kSecond / 2, server);
  Point point;
  point.rate = 100;
  point.recorded = recorder.Snapshot();
  // In 2.5 s it sends 2.5 / 0.015 and no more.
  EXPECT_NEAR(static_cast<double>(200 - unsent), 2.5 / 0.015, 2);
  EXPECT_EQ(point.recorded.answered + unsent, 200);
  const absl::Status judged = JudgeClient(point);
  EXPECT_FALSE(judged.ok());
  EXPECT_THAT(std::string(judged.message()), testing::HasSubstr("attn was the bottleneck, not the server"));
  const nlohmann::ordered_json json = ToJson(point);
  EXPECT_FALSE(json.contains("latency_us"));
  EXPECT_FALSE(json.contains("percentiles"));
  EXPECT_EQ(json["client"]["bottleneck"], std::string(judged.message()));
  EXPECT_THAT(ReportTables({{"points", {json}}}), testing::HasSubstr("attn was the bottleneck"));
}

// Stopped at 4.02 s of 10: the 403 requests that were due until then, in steps of a sixth of a second and windows of a
// third of the ten seconds, of which 24 steps are whole, one window is and one has 4.02 s - 3.33 s.
TEST(PacerTest, AStoppedLoadHasThePointOfTheTimeUntilThen) {
  PaperClock clock;
  std::atomic<std::int64_t> stop{kNever};
  Recorder recorder(0, 10 * kSecond, stop);
  struct Stops : PaperServer {
    Stops(PaperClock& paper, Recorder& to, std::atomic<std::int64_t>& ns) : PaperServer(paper, to, 0), stop(ns) {}
    void Send(std::int64_t due_ns) override {
      PaperServer::Send(due_ns);
      if (due_ns == 4'020'000'000) stop = due_ns;
    }
    std::atomic<std::int64_t>& stop;
  } server(clock, recorder, stop);
  EXPECT_EQ(Pace(Arrivals::Constant(100), clock, 0, 10 * kSecond, kSecond, server), 0);
  Point point;
  point.rate = 100;
  point.recorded = recorder.Snapshot();
  EXPECT_TRUE(point.recorded.stopped);
  EXPECT_EQ(point.recorded.answered, 403);
  EXPECT_EQ(point.recorded.seconds(), 4.02);
  EXPECT_EQ(point.recorded.timeline.size(), 24u);
  EXPECT_NEAR(point.recorded.windows[0].seconds, 10.0 / 3, 1e-9);
  EXPECT_NEAR(point.recorded.windows[1].seconds, 4.02 - 10.0 / 3, 1e-9);
  const nlohmann::ordered_json json = ToJson(point);
  EXPECT_EQ(json["stopped"], true);
  EXPECT_EQ(json["windows"].size(), 2u);
  EXPECT_EQ(json["unstable_because"], nlohmann::ordered_json({"it was stopped before its end"}));
  EXPECT_NEAR(json["requests_per_second"].get<double>(), 403 / 4.02, 1e-9);
}

TEST(PacerTest, ASlowServerIsNotTheClientsFault) {
  PaperClock clock;
  Recorder recorder(0, 2 * kSecond);
  PaperServer server(clock, recorder, 15'000'000);
  Pace(Arrivals::Constant(100), clock, 0, 2 * kSecond, kSecond, server);
  Point point;
  point.rate = 100;
  point.recorded = recorder.Snapshot();
  // Request n is answered at 15 (n + 1) ms and was due at 10 n ms.
  EXPECT_EQ(point.recorded.latency_ns.max(), std::int64_t{15'000'000} * 200 - std::int64_t{10'000'000} * 199);
  EXPECT_TRUE(JudgeClient(point).ok());
}

// A server of 2 ms a request is stable below 500 a second; with Poisson arrivals its p99 grows over all bounds there.
// At a constant rate nothing waits until then, so that the knee is exactly 500.
TEST(SearchTest, FindsAKnownKneeWithinFivePercent) {
  int loads = 0;
  const auto passes = [&](double rate) -> absl::StatusOr<bool> {
    ++loads;
    PaperClock clock;
    Recorder recorder(0, 20 * kSecond);
    PaperServer server(clock, recorder, 2'000'000);
    Pace(Arrivals::Constant(rate), clock, 0, 20 * kSecond, kSecond, server);
    return WithinSlo(recorder.Snapshot(), 5000);
  };
  for (const double first : {1.0, 100.0, 500.0, 4000.0}) {
    loads = 0;
    const absl::StatusOr<RateSearch> found = SearchRate(first, 1e-3, 1e6, 0.02, passes);
    ASSERT_TRUE(found.ok());
    EXPECT_NEAR(found->best, 500, 25) << first;
    EXPECT_GT(found->failed, found->best);
    EXPECT_LT(loads, 40) << first;
  }
}

TEST(SearchTest, NoiseThatFailsAGoodRateNowAndThenDoesNotMoveTheKnee) {
  int loads = 0;
  const auto passes = [&](double rate) -> absl::StatusOr<bool> { return ++loads % 5 != 0 && rate <= 730; };
  const absl::StatusOr<RateSearch> found = SearchRate(100, 1, 1e6, 0.02, passes);
  ASSERT_TRUE(found.ok());
  EXPECT_NEAR(found->best, 730, 0.05 * 730);
}

TEST(SearchTest, EndsAtBothEnds) {
  const auto always = [](double) -> absl::StatusOr<bool> { return true; };
  EXPECT_EQ(SearchRate(100, 1, 1000, 0.02, always)->best, 1000);
  EXPECT_EQ(SearchRate(100, 1, 1000, 0.02, always)->failed, 0);
  double least = 1e9;
  const auto never = [&](double rate) -> absl::StatusOr<bool> {
    least = std::min(least, rate);
    return false;
  };
  EXPECT_EQ(SearchRate(100, 20, 1000, 0.02, never)->best, 0);
  EXPECT_EQ(least, 25);  // the last halving that is no lower than 20
  const auto broken = [](double) -> absl::StatusOr<bool> { return absl::UnavailableError("gone"); };
  EXPECT_EQ(SearchRate(100, 1, 1000, 0.02, broken).status().message(), "gone");
}

// 99 of 100 in time is enough, and what was refused or failed is late for ever.
TEST(SearchTest, WhatIsNotAnsweredCountsAsLate) {
  const auto within = [](int fast, int slow, int refused, int failed) {
    Recorder recorder(0, kSecond);
    const auto add = [&](int count, std::int64_t latency_ns, const absl::Status& status) {
      Outcome outcome;
      outcome.done_ns = latency_ns;
      outcome.status = status;
      for (int n = 0; n < count; ++n) recorder.Done(outcome);
    };
    add(fast, 1'000'000, absl::OkStatus());
    add(slow, 9'000'000, absl::OkStatus());
    add(refused, 1'000, absl::ResourceExhaustedError("full"));
    add(failed, 1'000, absl::InternalError("broken"));
    return WithinSlo(recorder.Snapshot(), 5000);
  };
  EXPECT_TRUE(within(99, 1, 0, 0));
  EXPECT_FALSE(within(98, 2, 0, 0));
  EXPECT_TRUE(within(99, 0, 1, 0));
  EXPECT_FALSE(within(98, 1, 1, 0));
  EXPECT_FALSE(within(98, 0, 0, 2));
  EXPECT_FALSE(within(0, 0, 5, 0));
}

}  // namespace
}  // namespace attnd::client
