// attn bench: how much a server answers, and how late: at given rates, with given numbers of callers, or the highest
// rate that stays in time.
#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/bench/arrivals.h"
#include "client/cli/bench/compare.h"
#include "client/cli/bench/interrupt.h"
#include "client/cli/bench/measure.h"
#include "client/cli/bench/report.h"
#include "client/cli/bench/workload.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/page.h"
#include "client/cli/text.h"
#include "client/file.h"
#include "nlohmann/json.hpp"

namespace attnd::client {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kSearchFirst = 100, kSearchHighest = 1e6;  // requests a second
constexpr double kSearchTolerance = 0.02;
constexpr double kSearchAnswersMin = 100;  // a p99 of fewer is their maximum

// "-" is standard output.
absl::Status Write(const Io& io, const std::string& path, const std::string& text) {
  if (path != "-") return WriteFile(path, text);
  io.out << text;
  return absl::OkStatus();
}

struct BenchCommand {
  ServerFlags server;
  WorkloadFlags work;
  LoadPlan plan;
  std::string rate, concurrency, arrivals = "constant", slo;
  std::vector<std::string> fail_if, compare;
  std::string json, csv, html;  // files; "-" is standard output
  double change_percent = 3;

  absl::Status Run(const Io& io) {
    if (!compare.empty()) return RunCompare(io);
    std::vector<Condition> conditions;
    for (const std::string& text : fail_if) {
      absl::StatusOr<Condition> condition = Condition::Parse(text);
      if (!condition.ok()) return condition.status();
      conditions.push_back(*std::move(condition));
    }
    const absl::StatusOr<std::vector<Load>> loads = Loads();
    if (!loads.ok()) return loads.status();
    if (work.protocol == "kserve" && (plan.stream || plan.verify_rows > 0)) {
      return UsageError("--stream and --verify: not with --protocol kserve");
    }
    plan.poisson = arrivals == "poisson";
    plan.seed = work.seed;
    const absl::StatusOr<Workload> workload = work.Make();
    if (!workload.ok()) return workload.status();

    for (const std::string& path : {json, csv, html}) {
      if (path.empty() || path == "-") continue;
      const absl::Status writable = CheckWritable(path);
      if (!writable.ok()) return writable;
    }

    std::vector<Point> points;
    Json search;
    // What ends the loads before their end leaves those before it, which are shown.
    const absl::Status ended = MeasureAll(io, *workload, *loads, &points, &search);
    if (points.empty()) return ended;
    Json report = {{"attn", ATTND_VERSION}, {"server", server.server}};
    report["call"] = work.protocol == "kserve" ? "ModelInfer" : plan.stream ? "stream" : "unary";
    report["seed"] = work.seed;
    report["workload"] = workload->ToJson();
    report["points"] = Json::array();
    for (const Point& point : points) report["points"].push_back(ToJson(point));
    if (!search.is_null()) report["search"] = search;
    const absl::Status shown = Show(io, report);
    if (!shown.ok()) return shown;
    if (!ended.ok()) return ended;
    return Verdict(points, report, conditions);
  }

  // Below this rate a load has no p99.
  double SearchLowest() const { return kSearchAnswersMin / plan.duration_s; }

  absl::Status MeasureAll(const Io& io, const Workload& workload, const std::vector<Load>& loads,
                          std::vector<Point>* points, Json* search) const {
    const Interrupt interrupt;
    if (!slo.empty()) return Search(io, workload, loads.front(), points, search);
    for (const Load& load : loads) {
      absl::StatusOr<Point> point = Measure(server, workload, plan, load, io);
      if (!point.ok()) return point.status();
      points->push_back(*std::move(point));
      if (points->back().recorded.stopped) return Interrupted();
    }
    return absl::OkStatus();
  }

  // What is asked for one after another; where a search starts, when there is one.
  absl::StatusOr<std::vector<Load>> Loads() const {
    if (!rate.empty() && !concurrency.empty()) return UsageError("--rate and --concurrency exclude each other");
    if (arrivals != "constant" && arrivals != "poisson") {
      return UsageError(absl::StrCat("--arrivals: '", arrivals, "', expected constant or poisson"));
    }
    if (!slo.empty() && !concurrency.empty()) return UsageError("--slo searches for a rate, not for --concurrency");
    std::vector<Load> loads;
    if (!rate.empty() || !slo.empty()) {
      if (rate.empty()) return std::vector<Load>{Load{std::max(kSearchFirst, SearchLowest()), 0}};
      const absl::StatusOr<std::vector<double>> rates = ParseSweep("--rate", rate, 1e-3);
      if (!rates.ok()) return rates.status();
      for (const double value : *rates) loads.push_back({value, 0});
      if (!slo.empty() && loads.size() > 1) return UsageError("--slo takes one --rate, where its search begins");
      if (!slo.empty() && *loads[0].rate < SearchLowest()) {
        return UsageError(absl::StrCat("--slo: a p99 needs ", kSearchAnswersMin, " requests, which at --rate ", rate,
                                       " are --duration_s ", Short(kSearchAnswersMin / *loads[0].rate), " or more"));
      }
      return loads;
    }
    const absl::StatusOr<std::vector<double>> callers =
        ParseSweep("--concurrency", concurrency.empty() ? "1" : concurrency, 1);
    if (!callers.ok()) return callers.status();
    for (const double value : *callers) {
      const auto whole = static_cast<std::int64_t>(value + 1e-6);
      if (value > 4096) return UsageError(absl::StrCat("--concurrency: ", Short(value), ", at most 4096"));
      if (!loads.empty() && loads.back().callers == whole) continue;
      loads.push_back({std::nullopt, whole});
    }
    return loads;
  }

  absl::Status Search(const Io& io, const Workload& workload, const Load& first, std::vector<Point>* points,
                      Json* search) const {
    const absl::StatusOr<double> slo_us = ParseMicroseconds("--slo", slo);
    if (!slo_us.ok()) return slo_us.status();
    std::optional<double> limit;  // the lowest rate that this process could not drive
    const auto passes = [&](double tried) -> absl::StatusOr<bool> {
      absl::StatusOr<Point> point = Measure(server, workload, plan, {tried, 0}, io);
      if (!point.ok()) return point.status();
      const bool stopped = point->recorded.stopped;
      const bool ours = !JudgeClient(*point).ok();
      const bool passed = !ours && WithinSlo(point->recorded, *slo_us);
      if (ours) limit = std::min(limit.value_or(tried), tried);
      if (!stopped)
        io.err << "rate " << Short(tried) << (passed ? ": in time\n" : ours ? ": too much for attn\n" : ": too late\n");
      // A rate that was tried twice has its second result.
      if (!points->empty() && points->back().rate == tried) points->pop_back();
      points->push_back(*std::move(point));
      if (stopped) return Interrupted();
      return passed;
    };
    const absl::StatusOr<RateSearch> found =
        SearchRate(*first.rate, SearchLowest(), kSearchHighest, kSearchTolerance, passes);
    std::sort(points->begin(), points->end(), [](const Point& a, const Point& b) { return *a.rate < *b.rate; });
    if (!found.ok()) return found.status();
    (*search)["slo_us"] = *slo_us;
    (*search)["rate"] = found->best;
    (*search)["too_late_at"] = found->failed;
    (*search)["limited_by"] = limit && *limit <= found->failed ? Json("attn itself could not send faster") : Json();
    return absl::OkStatus();
  }

  absl::Status Show(const Io& io, const Json& report) const {
    absl::Status status;
    if (!csv.empty()) status.Update(Write(io, csv, ReportCsv(report)));
    if (!html.empty()) status.Update(Write(io, html, MakePage("attn bench", "bench", report)));
    if (!json.empty()) status.Update(Write(io, json, absl::StrCat(report.dump(2), "\n")));
    const bool out_is_taken = json == "-" || csv == "-" || html == "-";
    if (!out_is_taken) io.out << Head(report) << ReportTables(report);
    return status;
  }

  std::string Head(const Json& report) const {
    const Json& items = report["workload"];
    std::string what = items.size() == 1 ? absl::StrCat("shape ", items[0]["shape"].get<std::string>(), " ",
                                                        items[0]["dtype"].get<std::string>())
                                         : absl::StrCat(items.size(), " shapes");
    if (!work.wire_dtype.empty()) absl::StrAppend(&what, " sent as ", work.wire_dtype);
    const bool open = report["points"][0].contains("rate");
    return absl::StrFormat("%s, %s, %s, %.3g s each\n\n", what, report["call"].get<std::string>(),
                           open ? absl::StrCat("an open loop of ", arrivals, " arrivals") : "a closed loop",
                           plan.duration_s);
  }

  // What makes the exit code 1: a server that fails, this process, wrong rows, conditions.
  absl::Status Verdict(const std::vector<Point>& points, const Json& report,
                       const std::vector<Condition>& conditions) const {
    std::int64_t answered = 0;
    for (const Point& point : points) {
      answered += point.recorded.answered;
      const absl::Status& failure = point.recorded.first_failure;
      if (!failure.ok()) {
        return server.Explain(
            absl::Status(failure.code(), absl::StrCat("calls failed; the first: ", failure.message())));
      }
    }
    if (answered == 0) {
      return absl::ResourceExhaustedError(
          "no call was answered: all were refused; a smaller --shape, --rate or --concurrency may fit");
    }
    for (const Point& point : points) {
      if (slo.empty() && !JudgeClient(point).ok()) return JudgeClient(point);
      if (point.check && !point.check->passed()) {
        return absl::DataLossError(absl::StrCat("answers are outside the tolerance: ", Short(point.check->output_share),
                                                " times what is allowed"));
      }
    }
    if (report.contains("search")) {
      const Json& search = report["search"];
      if (!search["limited_by"].is_null()) {
        return absl::ResourceExhaustedError(absl::StrCat("attn was the bottleneck, not the server: it could not send ",
                                                         Short(search["too_late_at"].get<double>()), " requests/s"));
      }
      if (search["rate"] == 0)
        return absl::ResourceExhaustedError(absl::StrCat("no rate keeps p99 under ", slo, "; ", Short(SearchLowest()),
                                                         " requests/s are the least that --duration_s ",
                                                         Short(plan.duration_s), " can tell a p99 of"));
    }
    std::vector<std::string> held;
    for (const Condition& condition : conditions) {
      for (const Json& point : report["points"]) {
        if (!condition.Holds(point)) continue;
        held.push_back(absl::StrCat(condition.text, " at ", point.contains("rate") ? "rate " : "concurrency ",
                                    Short(point[point.contains("rate") ? "rate" : "concurrency"].get<double>()), " (",
                                    condition.Got(point), ")"));
      }
    }
    if (!held.empty()) return absl::OutOfRangeError(absl::StrCat("--fail_if: ", absl::StrJoin(held, ", ")));
    return absl::OkStatus();
  }

  absl::Status RunCompare(const Io& io) const {
    std::vector<nlohmann::json> reports;
    for (const std::string& path : compare) {
      const absl::StatusOr<std::string> text = ReadFile(path);
      if (!text.ok()) return text.status();
      reports.push_back(nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false));
    }
    const absl::StatusOr<std::vector<Change>> changes = Compare(reports[0], reports[1], change_percent / 100);
    if (!changes.ok()) return changes.status();
    io.out << ChangesTable(*changes);
    std::vector<std::string> worse;
    for (const Change& change : *changes) {
      if (change.verdict != Change::kWorse) continue;
      worse.push_back(absl::StrFormat("%s at %s by %.1f %%", change.metric, change.where, change.change * 100));
    }
    if (worse.empty()) return absl::OkStatus();
    return absl::OutOfRangeError(absl::StrCat("worse: ", absl::StrJoin(worse, ", ")));
  }
};

}  // namespace

void AddBenchCommand(CLI::App& app, Command& selected) {
  auto command = std::make_shared<BenchCommand>();
  CLI::App* sub = app.add_subcommand("bench", "Measure throughput and latency: at a rate, or with callers that wait");
  command->server.AddTo(*sub);
  LoadPlan& plan = command->plan;
  const std::string load = "How it is asked";
  sub->add_option("--rate", command->rate,
                  "requests a second, whatever the server does; latency counts from when each was due. 250, 100,200, "
                  "100:2000:100 (step) or 100:6400:x2 (factor)")
      ->group(load);
  sub->add_option("--arrivals", command->arrivals, "of --rate")
      ->type_name("{constant,poisson}")
      ->capture_default_str()
      ->group(load);
  sub->add_option("--concurrency", command->concurrency,
                  "callers that each ask again when answered; written like --rate; 1 when nothing is said")
      ->group(load);
  sub->add_option("--slo", command->slo, "search for the highest rate with p99 under this, as 5ms")->group(load);
  sub->add_option("--duration_s", plan.duration_s, "seconds of each load that count")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 1e6))
      ->group(load);
  sub->add_option("--warm_up_calls", plan.warm_up_calls, "calls of each caller that do not count, at first")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
      ->group(load);
  sub->add_option("--warm_up_s", plan.warm_up_s,
                  "seconds of the same load that do not count; 1 with --rate, otherwise 0, when nothing is said")
      ->check(CLI::Range(0.0, 1e6))
      ->group(load);
  sub->add_flag("--stream", plan.stream, "problems on open streams, one a connection, instead of unary calls")
      ->group(load);
  sub->add_option("--connections", plan.connections, "0: one a caller; 4 (16 streams) with --rate")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{4096}))
      ->group(load);
  sub->add_option("--threads", plan.threads, "that read answers; 0: the CPUs, and 1 with --rate")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{256}))
      ->group(load);
  sub->add_option("--in_flight_max", plan.in_flight_max, "requests of --rate that wait for answers at once")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->group(load);
  command->work.AddTo(*sub);
  const std::string results = "What is made of it";
  sub->add_option("--json", command->json, "write JSON to this file, or print it")->expected(0, 1)->group(results);
  sub->add_option("--csv", command->csv, "likewise, a line a load")->expected(0, 1)->group(results);
  sub->add_option("--html", command->html, "likewise, a page with charts, in one file")->expected(0, 1)->group(results);
  sub->add_option("--fail_if", command->fail_if, "exit with 1 where this holds, as 'p99>5ms' or 'failed>0'; repeatable")
      ->expected(1)
      ->take_all()
      ->group(results);
  sub->add_option("--verify", plan.verify_rows, "recompute so many rows of the answers in float64, and compare")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
      ->group(results);
  sub->add_option("--metrics", plan.metrics, "the server's page, for its CPU and memory: http://127.0.0.1:9090/metrics")
      ->group(results);
  sub->add_option("--margin_percent", plan.margin_percent,
                  "what three windows' throughput and p50 may differ by, and a third of what p99 may")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 1000.0))
      ->group(results);
  sub->add_option("--compare", command->compare, "two files of --json: what changed by more than chance; asks nobody")
      ->expected(2)
      ->group(results);
  sub->add_option("--change_percent", command->change_percent, "of --compare: smaller changes are none")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1000.0))
      ->group(results);
  sub->footer(
      "Examples:\n  attn bench --shape 1,8,2048,64 --concurrency 4 --duration_s 10 --stream\n"
      "  attn bench --shape 1,1,5,64 --rate 100:2000:100 --arrivals poisson --html report.html\n"
      "  attn bench --shape 1,8,512,64 --slo 20ms\n  attn bench --compare before.json after.json");
  sub->callback([command, sub, &selected] {
    for (const auto& [flag, path] :
         {std::pair("--json", &command->json), {"--csv", &command->csv}, {"--html", &command->html}}) {
      // What a flag without a file holds differs between versions of the parser.
      if (sub->count(flag) > 0 && (path->empty() || *path == "true")) *path = "-";
    }
    selected = [command](const Io& io) { return command->Run(io); };
  });
}

}  // namespace attnd::client
