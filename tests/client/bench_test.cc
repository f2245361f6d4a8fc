// attn bench: what it reports, from reports on paper and against the fake server, whose delays are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/bench/compare.h"
#include "client/cli/bench/metrics_page.h"
#include "client/cli/bench/progress.h"
#include "client/cli/bench/report.h"
#include "client/cli/bench/workload.h"
#include "client/cli/cli.h"
#include "client/cli/flags.h"
#include "client/cli/random.h"
#include "tests/client/fake_server.h"

namespace attnd::client {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

struct Ran {
  int code = 0;
  std::string out, err;
};

class BenchTest : public testing::Test {
 protected:
  BenchTest() : folder_(testing::TempDir() + "bench_test/") { std::filesystem::create_directories(folder_); }
  Ran Bench(std::vector<std::string> words) {
    words.insert(words.begin(), {"attn", "bench", "--server", target_});
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    std::ostringstream out, err;
    Ran ran;
    ran.code = RunCommandLine(static_cast<int>(argv.size()), argv.data(), {out, err});
    ran.out = out.str();
    ran.err = err.str();
    return ran;
  }
  // The only point of a run.
  Json Only(const std::vector<std::string>& words) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--shape", "1,1,5,4", "--json"});
    const Ran ran = Bench(all);
    EXPECT_LE(ran.code, 1) << ran.err;
    last_error_ = ran.err;
    const Json report = Json::parse(ran.out, nullptr, false);
    EXPECT_TRUE(report.is_object()) << ran.out << ran.err;
    return report["points"][0];
  }
  std::string File(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + name) << text;
    return folder_ + name;
  }
  FakeServer server_;
  std::string target_ = server_.target;
  std::string folder_, last_error_;
};

TEST_F(BenchTest, EitherLoopByEitherCallCountsWhatTheServerSaw) {
  for (const std::vector<std::string>& call : std::vector<std::vector<std::string>>{{}, {"--stream"}}) {
    std::vector<std::string> closed = {"--concurrency", "3", "--duration_s", "0.1", "--warm_up_calls", "2"};
    closed.insert(closed.end(), call.begin(), call.end());
    int before = server_.unary_calls + server_.stream_problems;
    Json point = Only(closed);
    EXPECT_GE(point["requests"], 3);
    EXPECT_EQ(server_.unary_calls + server_.stream_problems - before, point["requests"].get<int>() + 6);
    EXPECT_EQ(point["loop"], "closed");
    EXPECT_EQ(point["compute_us_p50"], 2);
    // Four tensors of 5 x 4 float32; 4000 operations and five tokens a request.
    const double requests = point["requests_per_second"];
    EXPECT_NEAR(point["bytes_per_second"].get<double>() / requests, 320, 1e-6);
    EXPECT_NEAR(point["gflops_per_second"].get<double>() / requests, 4e-6, 1e-12);
    EXPECT_NEAR(point["tokens_per_second"].get<double>() / requests, 5, 1e-6);

    std::vector<std::string> open = {"--rate",      "200", "--duration_s",    "0.5",
                                     "--warm_up_s", "0",   "--warm_up_calls", "0"};
    open.insert(open.end(), call.begin(), call.end());
    before = server_.unary_calls + server_.stream_problems;
    point = Only(open);
    EXPECT_EQ(point["requests"], 100);
    EXPECT_EQ(server_.unary_calls + server_.stream_problems - before, 100);
    EXPECT_EQ(point["rate"], 200);
  }
}

TEST_F(BenchTest, EveryCallerMakesACallThatCountsHoweverShortTheTime) {
  server_.spoil = [](v1::AttendResponse&) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  const Json point = Only({"--concurrency", "4", "--duration_s", "0.01", "--warm_up_calls", "0"});
  EXPECT_EQ(point["requests"], 4);
  EXPECT_FALSE(point["stable"]);
  EXPECT_GE(point["latency_us"]["p50"], 50'000);
}

// The server holds every call that comes in one second: of 300 requests in three, one hundred wait 1000, 990, ... ms.
TEST_F(BenchTest, AStallOfASecondShowsInTheTail) {
  std::atomic<std::int64_t> calls{0}, stall_end{0};
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  server_.spoil = [&](v1::AttendResponse&) {
    if (++calls == 100) stall_end = now() + 1'000'000'000;
    while (now() < stall_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const Json point = Only({"--rate", "100", "--duration_s", "3", "--warm_up_s", "0", "--warm_up_calls", "0"});
  EXPECT_EQ(point["requests"], 300);
  if (point.contains("latency_us")) {  // not where this machine kept the load itself from running
    EXPECT_GE(point["latency_us"]["max"], 0.99e6);
    EXPECT_GE(point["latency_us"]["p99"], 0.94e6);
    EXPECT_GE(point["latency_us"]["p90"], 0.66e6);
  } else {
    EXPECT_THAT(last_error_, HasSubstr("attn was the bottleneck"));
  }
}

TEST_F(BenchTest, RefusalsAreApartFromFailures) {
  for (const std::vector<std::string>& call : std::vector<std::vector<std::string>>{{}, {"--stream"}}) {
    std::vector<std::string> words = {"--concurrency", "2", "--duration_s", "0.05"};
    words.insert(words.end(), call.begin(), call.end());
    server_.refusal = {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
    Json point = Only(words);
    EXPECT_EQ(point["requests"], 0);
    EXPECT_GT(point["refused"], 0);
    EXPECT_EQ(point["failed"], 0);
    EXPECT_THAT(last_error_, HasSubstr("no call was answered: all were refused"));
    server_.refusal = {grpc::StatusCode::INTERNAL, "broken"};
    point = Only(words);
    EXPECT_EQ(point["refused"], 0);
    EXPECT_EQ(point["failed"], point["failed_by_status"]["INTERNAL"]);
    EXPECT_THAT(last_error_, HasSubstr("calls failed; the first: broken"));
    server_.refusal = grpc::Status::OK;
  }
  // A stream that ends in the middle is a failure of what it carried, and the next problem has another.
  server_.hang_up = true;
  const Json point = Only({"--stream", "--duration_s", "0.05"});
  EXPECT_GT(point["failed_by_status"]["ABORTED"], 1);
}

TEST_F(BenchTest, AnAnswerOfTheWrongSizeIsNone) {
  server_.spoil = [](v1::AttendResponse& response) { response.mutable_output()->mutable_data()->resize(8); };
  EXPECT_GT(Only({"--duration_s", "0.05"})["failed_by_status"]["INTERNAL"], 0);
  server_.leave_out_last = true;
  EXPECT_GT(Only({"--duration_s", "0.05", "--stream"})["failed"], 0);
}

TEST_F(BenchTest, EveryCallConvertsBothWays) {
  for (const std::vector<std::string>& call : std::vector<std::vector<std::string>>{{}, {"--stream"}}) {
    std::vector<std::string> words = {"--duration_s", "0.05", "--wire_dtype", "float16", "--warm_up_calls", "0"};
    words.insert(words.end(), call.begin(), call.end());
    const Json point = Only(words);
    ASSERT_GT(point["requests"], 0) << last_error_;
    EXPECT_NEAR(point["bytes_per_second"].get<double>() / point["requests_per_second"].get<double>(), 160, 1e-6);
  }
}

TEST_F(BenchTest, TablesAreNoWiderThanATerminalAndSayWhatHappened) {
  const Ran ran = Bench({"--shape", "1,2/1,3,5,4", "--duration_s", "0.05", "--concurrency", "1:4:x2"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const char* word : {"requests/s", "GF/s", "tokens/s", "p50", "p99.99", "max", "client", "wire", "queue",
                           "compute", "0 refused", "0 failed", "\n1 ", "\n2 ", "\n4 "}) {
    EXPECT_THAT(ran.out, HasSubstr(word));
  }
  for (const absl::string_view line : absl::StrSplit(ran.out, '\n')) EXPECT_LE(line.size(), 80u) << line;
}

TEST_F(BenchTest, FilesHoldTheSameReport) {
  const std::string json = folder_ + "r.json", csv = folder_ + "r.csv", html = folder_ + "r.html";
  const Ran ran = Bench({"--shape", "1,1,5,4", "--duration_s", "0.05", "--concurrency", "1,2", "--json", json, "--csv",
                         csv, "--html", html});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("latency"));
  const auto read = [](const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  const Json report = Json::parse(read(json));
  EXPECT_EQ(report["points"].size(), 2u);
  EXPECT_THAT(read(html), HasSubstr(report.dump()));
  const std::vector<std::string> lines = absl::StrSplit(read(csv), '\n');
  ASSERT_EQ(lines.size(), 4u);
  const std::vector<std::string> names = absl::StrSplit(lines[0], ','), cells = absl::StrSplit(lines[2], ',');
  ASSERT_EQ(names.size(), cells.size());
  for (std::size_t c = 0; c < names.size(); ++c) {
    if (names[c] == "latency_us.p99") {
      EXPECT_EQ(cells[c], report["points"][1]["latency_us"]["p99"].dump());
    }
  }
  EXPECT_THAT(names, testing::Contains("latency_us.p99"));
}

TEST_F(BenchTest, ConditionsAndTheCheckDecideTheExitCode) {
  const std::vector<std::string> quick = {"--shape", "1,1,5,4", "--duration_s", "0.05"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), quick.begin(), quick.end());
    return Bench(words);
  };
  EXPECT_EQ(with({"--fail_if", "failed>0", "--fail_if", "p99>60s"}).code, 0);
  const Ran failed = with({"--fail_if", "failed>0", "--fail_if", "p50>0.001us"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.err, HasSubstr("--fail_if: p50>0.001us at concurrency 1 ("));
  const Ran checked = with({"--verify", "5"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("5 rows against float64"));
  const Ran streamed = with({"--verify", "5", "--stream"});
  EXPECT_EQ(streamed.code, 0) << streamed.err;
  server_.spoil = [](v1::AttendResponse& response) {
    if (response.output().dtype() != v1::DATA_TYPE_FLOAT32) return;  // the checking calls are in float64
    response.mutable_output()->mutable_data()->assign(80, '\x40');
  };
  const Ran wrong = with({"--verify", "5"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("outside the tolerance"));
}

TEST_F(BenchTest, AMixHasItsWeights) {
  const std::string mix = File("mix.json", R"([{"weight": 3, "shape": "1,1,2,4"},
      {"shape": "1,1,3,4", "dtype": "float16", "options": {"scale": 0.5}}])");
  WorkloadFlags flags;
  flags.mix = mix;
  const absl::StatusOr<Workload> workload = flags.Make();
  ASSERT_TRUE(workload.ok()) << workload.status();
  ASSERT_EQ(workload->items.size(), 2u);
  EXPECT_EQ(workload->items[1].problem.request().options().scale(), 0.5);
  EXPECT_EQ(workload->items[1].problem.request().q().dtype(), v1::DATA_TYPE_FLOAT16);
  Picker picker(*workload, 7);
  int first = 0;
  for (int n = 0; n < 40'000; ++n) first += &picker.Next() == workload->items.data() ? 1 : 0;
  EXPECT_NEAR(first, 30'000, 4 * std::sqrt(40'000 * 0.75 * 0.25));
  EXPECT_EQ(Bench({"--mix", mix, "--duration_s", "0.05", "--verify", "4"}).code, 0);
  for (const char* wrong : {"{}", "[]", "[1]", R"([{"weight": 0}])", R"([{"shape": "1,1"}])", R"([{"wait": 1}])",
                            R"([{"options": {"no_such": 1}}])", "["}) {
    flags.mix = File("wrong.json", wrong);
    EXPECT_TRUE(IsUsageError(flags.Make().status())) << wrong;
  }
  flags.mix = "decode";
  flags.shape = "1,2,64,4";
  const absl::StatusOr<Workload> decode = flags.Make();
  ASSERT_EQ(decode->items.size(), 9u);
  EXPECT_EQ(decode->items[0].shape, "1,2,1,8,4");
  EXPECT_EQ(decode->items[8].shape, "1,2,64,4");
  EXPECT_TRUE(decode->items[8].problem.request().options().causal());
}

// Zipf with exponent 1 over 1, 2, 3, 4: shares 12/25, 6/25, 4/25, 3/25. Log-normal: the median in the middle, and one
// standard deviation is a factor of e^sigma.
TEST_F(BenchTest, LengthsFollowTheirDistribution) {
  const std::vector<std::int64_t> zipf = *LengthsOf("zipf:1", 4, 25);
  for (const auto& [length, count] : {std::pair(1, 12), {2, 6}, {3, 4}, {4, 3}}) {
    EXPECT_EQ(std::count(zipf.begin(), zipf.end(), length), count) << length;
  }
  const std::vector<std::int64_t> normal = *LengthsOf("lognormal:1000:0.5", 1 << 20, 10'001);
  EXPECT_EQ(normal[5000], 1000);
  EXPECT_NEAR(static_cast<double>(normal[8413]), 1000 * std::exp(0.5), 2);
  EXPECT_NEAR(static_cast<double>(normal[1587]), 1000 * std::exp(-0.5), 2);
  EXPECT_EQ(LengthsOf("lognormal:1000:3", 1500, 100)->back(), 1500);
  WorkloadFlags flags;
  flags.shape = "1,1,64,4";
  flags.options.lengths = "zipf:1.1";
  const absl::StatusOr<Workload> workload = flags.Make();
  double weights = 0;
  for (const WorkItem& item : workload->items) weights += item.weight;
  EXPECT_EQ(weights, 32);
  EXPECT_EQ(workload->items[0].shape, "1,1,1,4");
}

TEST_F(BenchTest, TheSameSeedMakesTheSameTensors) {
  WorkloadFlags flags;
  flags.shape = "1,1,5,4";
  const std::string first = flags.Make()->items[0].problem.request().SerializeAsString();
  EXPECT_EQ(flags.Make()->items[0].problem.request().SerializeAsString(), first);
  flags.seed = 1;
  EXPECT_NE(flags.Make()->items[0].problem.request().SerializeAsString(), first);
}

// A report of one rate whose steps have p50 and p99 of `level` with noise of `share`.
nlohmann::json Paper(double level, double share, std::uint64_t seed, std::size_t steps = 40) {
  std::mt19937_64 generator(seed);
  nlohmann::json point = {{"rate", 100}, {"timeline", nlohmann::json::array()}};
  for (std::size_t s = 0; s < steps; ++s) {
    const double us = level * (1 + share * (2 * Uniform(generator) - 1));
    point["timeline"].push_back({{"requests_per_second", 100}, {"p50_us", us}, {"mean_us", us}, {"p99_us", 3 * us}});
  }
  return {{"points", {point}}};
}

TEST_F(BenchTest, ARegressionIsToldFromNoise) {
  const auto verdict = [](const nlohmann::json& before, const nlohmann::json& after) {
    const absl::StatusOr<std::vector<Change>> changes = Compare(before, after, 0.03);
    EXPECT_TRUE(changes.ok());
    EXPECT_EQ(changes->size(), 4u);
    EXPECT_EQ(changes->at(0).verdict, after["points"][0]["timeline"].size() < 12 ? Change::kTooShort : Change::kNoise)
        << "the throughput is the same";
    EXPECT_LE(changes->at(3).low, changes->at(3).change);
    EXPECT_GE(changes->at(3).high, changes->at(3).change);
    return changes->at(3).verdict;
  };
  EXPECT_EQ(verdict(Paper(100, 0.1, 1), Paper(120, 0.1, 2)), Change::kWorse);
  EXPECT_EQ(verdict(Paper(120, 0.1, 1), Paper(100, 0.1, 2)), Change::kBetter);
  EXPECT_EQ(verdict(Paper(100, 0.1, 1), Paper(102, 0.1, 2)), Change::kNoise) << "smaller than 3 %";
  EXPECT_EQ(verdict(Paper(100, 0.1, 1), Paper(120, 0.1, 2, 11)), Change::kTooShort);
  // The interval is one of 99 %: of 300 pairs from one distribution hardly any is called a change.
  int wrong = 0;
  for (std::uint64_t pair = 0; pair < 300; ++pair) {
    const Change change = Compare(Paper(100, 0.5, 2 * pair + 10), Paper(100, 0.5, 2 * pair + 11), 0)->at(3);
    wrong += change.verdict == Change::kNoise ? 0 : 1;
  }
  EXPECT_LE(wrong, 15);
}

// 50 of 1000 against none: 2.5758 standard deviations of sqrt(0.05 · 0.95 / 1000) around 0.05.
TEST_F(BenchTest, WhatIsNotAnsweredIsComparedToo) {
  const auto with = [](int requests, int refused, int failed, int unsent) {
    nlohmann::json report = Paper(100, 0.1, 1);
    report["points"][0].update({{"requests", requests}, {"refused", refused}, {"failed", failed}, {"unsent", unsent}});
    return report;
  };
  EXPECT_EQ(Compare(with(1000, 0, 0, 0), with(900, 0, 0, 0), 0.03)->size(), 4u);
  const std::vector<Change> lost = *Compare(with(1000, 0, 0, 0), with(950, 20, 29, 1), 0.03);
  ASSERT_EQ(lost.size(), 5u);
  EXPECT_EQ(lost[4].where, "rate 100");
  EXPECT_DOUBLE_EQ(lost[4].change, 0.05);
  EXPECT_NEAR(lost[4].low, 0.05 - 0.017752, 1e-6);
  EXPECT_NEAR(lost[4].high, 0.05 + 0.017752, 1e-6);
  EXPECT_EQ(lost[4].verdict, Change::kWorse);
  EXPECT_THAT(ChangesTable(lost), HasSubstr("unanswered"));
  EXPECT_EQ(Compare(with(950, 0, 50, 0), with(1000, 0, 0, 0), 0.03)->at(4).verdict, Change::kBetter);
  EXPECT_EQ(Compare(with(1000, 0, 0, 0), with(999, 0, 1, 0), 0.03)->at(4).verdict, Change::kNoise);
}

TEST_F(BenchTest, PointsAreComparedInTheOrderOfTheirLoads) {
  nlohmann::json report = Paper(100, 0.1, 1);
  for (const double rate : {50, 1000, 200}) {
    nlohmann::json point = report["points"][0];
    point["rate"] = rate;
    report["points"].push_back(std::move(point));
  }
  std::vector<std::string> where;
  const absl::StatusOr<std::vector<Change>> changes = Compare(report, report, 0.03);
  ASSERT_TRUE(changes.ok());
  for (const Change& change : *changes) where.push_back(change.where);
  where.erase(std::unique(where.begin(), where.end()), where.end());
  EXPECT_THAT(where, testing::ElementsAre("rate 50", "rate 100", "rate 200", "rate 1000"));
}

TEST_F(BenchTest, CompareIsAnExitCode) {
  const std::string a = File("a.json", Paper(100, 0.1, 1).dump()), b = File("b.json", Paper(150, 0.1, 2).dump());
  EXPECT_EQ(Bench({"--compare", a, a}).code, 0);
  const Ran worse = Bench({"--compare", a, b});
  EXPECT_EQ(worse.code, 1);
  EXPECT_THAT(worse.out, HasSubstr("worse"));
  EXPECT_THAT(worse.err, HasSubstr("p99 at rate 100 by 5"));
  EXPECT_EQ(Bench({"--compare", b, a}).code, 0);
  EXPECT_EQ(Bench({"--compare", a, File("c.json", "{}")}).code, 1);
  EXPECT_EQ(Bench({"--compare", a, File("c.json", "[")}).code, 1);
}

TEST_F(BenchTest, ThePageOfMetricsIsReadByName) {
  const absl::StatusOr<ProcessFigures> figures = ParseProcessFigures(
      "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 12.5\nother 3\n"
      "process_resident_memory_bytes 1.048576e+06\n");
  ASSERT_TRUE(figures.ok());
  EXPECT_EQ(figures->cpu_seconds, 12.5);
  EXPECT_EQ(figures->resident_bytes, 1048576);
  EXPECT_FALSE(ParseProcessFigures("process_cpu_seconds_total 1\n").ok());
  for (const char* wrong : {"https://127.0.0.1:1/m", "127.0.0.1:1", "http://:1/m", "http://127.0.0.1:x/m"}) {
    EXPECT_TRUE(IsUsageError(ReadProcessFigures(wrong).status())) << wrong;
  }
  const Ran nobody = Bench({"--shape", "1,1,5,4", "--metrics", "http://127.0.0.1:1/metrics", "--duration_s", "0.05"});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_THAT(nobody.err, HasSubstr("no metrics at http://127.0.0.1:1/metrics"));
}

TEST_F(BenchTest, TheLineOfProgressKeepsToItsWidth) {
  Recorder recorder(0, 10'000'000'000);
  Outcome outcome;
  outcome.done_ns = 2'000'000;
  recorder.Done(outcome);
  const Recorded recorded = recorder.Snapshot();
  const std::string wide = ProgressLine("rate 100", recorded, 5'000'000'000, 199);
  EXPECT_THAT(wide, HasSubstr("5 of 10 s"));
  EXPECT_THAT(wide, HasSubstr("p50 2 ms"));
  EXPECT_THAT(wide, HasSubstr(absl::StrCat("[", std::string(20, '#'), std::string(20, '.'), "]")));
  for (std::size_t columns = 1; columns < 120; ++columns) {
    EXPECT_LE(ProgressLine("rate 100", recorded, 5'000'000'000, columns).size(), columns);
  }
}

TEST_F(BenchTest, ARateThatNobodyCanSendIsRefused) {
  // One that need not answer tens of thousands of calls, and leaves the system its threads.
  const FakeServer few_threads(grpc::InsecureServerCredentials(), 8);
  target_ = few_threads.target;
  const Ran ran = Bench({"--shape", "1,1,5,4", "--rate", "20000000", "--duration_s", "0.1", "--warm_up_s", "0",
                         "--in_flight_max", "1048576"});
  EXPECT_EQ(ran.code, 1);
  // Where this machine kept even the connection from being read for long, its calls failed, which counts for more.
  EXPECT_THAT(ran.err, testing::AnyOf(HasSubstr("attn was the bottleneck, not the server"),
                                      HasSubstr("calls failed; the first: ")));
}

}  // namespace
}  // namespace attnd::client
