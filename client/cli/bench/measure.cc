#include "client/cli/bench/measure.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/cli/ask.h"
#include "client/cli/bench/call.h"
#include "client/cli/bench/interrupt.h"
#include "client/cli/bench/metrics_page.h"
#include "client/cli/bench/progress.h"
#include "client/cli/text.h"
#include "client/decode.h"

namespace attnd::client {

namespace {

constexpr std::int64_t kOpenConnections = 4, kOpenStreams = 16;

std::int64_t Ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

// Rows of each item, spread over its answer. What a load has no reply of is asked again.
absl::StatusOr<CheckResult> Verify(const ServerFlags& server, const Workload& workload,
                                   std::vector<grpc::ByteBuffer> replies, const LoadPlan& plan) {
  absl::StatusOr<std::unique_ptr<Client>> client = server.Connect();
  if (!client.ok()) return client.status();
  const auto items = static_cast<std::int64_t>(workload.items.size());
  const std::int64_t rows = std::max<std::int64_t>(1, plan.verify_rows / items);
  CheckResult all;
  for (std::int64_t i = 0; i < std::min(items, plan.verify_rows); ++i) {
    const auto index = static_cast<std::size_t>(i);
    Problem problem = workload.items[index].problem;
    if (workload.convert) {
      const absl::Status converted = problem.SetWireDType(*workload.convert);
      if (!converted.ok()) return converted;
    }
    absl::StatusOr<Answer> answer = absl::NotFoundError("no reply was kept");
    if (replies[index].Valid()) {
      answer = DecodeAnswer(problem, replies[index]);
    } else {
      answer = plan.stream ? (*client)->AttendStream(problem) : Ask(**client, problem);
    }
    if (!answer.ok()) return answer.status();
    const absl::StatusOr<OutputLayout> layout = problem.LayoutOf(v1::OUTPUT_KIND_OUTPUT);
    if (!layout.ok()) return layout.status();
    const absl::StatusOr<CheckResult> checked =
        CheckRows(**client, problem, *answer, SampleRows(*layout, rows), nullptr);
    if (!checked.ok()) return checked.status();
    all.rows += checked->rows;
    all.output_error = std::max(all.output_error, checked->output_error);
    all.output_share = std::max(all.output_share, checked->output_share);
  }
  return all;
}

}  // namespace

absl::Status Interrupted() { return absl::CancelledError("interrupted"); }

bool WithinSlo(const Recorded& r, double slo_us) {
  // What was refused, failed or never sent is late for ever.
  const std::int64_t due = r.answered + r.refused + r.failures() + r.unsent;
  const double percent = r.answered == 0 ? 101 : 99 * static_cast<double>(due) / static_cast<double>(r.answered);
  return percent <= 100 && r.latency_ns.Percentile(percent) <= slo_us * 1e3;
}

absl::StatusOr<Point> Measure(const ServerFlags& server, const Workload& workload, const LoadPlan& plan,
                              const Load& load, const Io& io) {
  DriverOptions options;
  options.connections = plan.connections;
  if (plan.connections == 0) {
    options.connections = !load.rate ? load.callers : plan.stream ? kOpenStreams : kOpenConnections;
  }
  options.threads = plan.threads;
  if (plan.threads == 0) {
    options.threads = load.rate ? 1 : std::min<std::int64_t>(std::thread::hardware_concurrency(), load.callers);
  }
  options.threads = std::clamp<std::int64_t>(options.threads, 1, options.connections);
  options.stream = plan.stream;
  options.in_flight_max = plan.in_flight_max;
  options.seed = plan.seed;
  if (Interrupt::at_ns() != kNever) return Interrupted();
  absl::StatusOr<std::unique_ptr<Driver>> driver = Driver::Connect(server, workload, options);
  if (!driver.ok()) return driver.status();

  Point point;
  point.rate = load.rate;
  point.arrivals = plan.poisson ? "poisson" : "constant";
  point.concurrency = load.callers;
  point.threads = options.threads;
  point.margin_percent = plan.margin_percent;
  if (plan.warm_up_calls > 0) {
    (*driver)->WarmUp(load.rate ? options.connections : load.callers, plan.warm_up_calls);
  }
  absl::StatusOr<ProcessFigures> before;
  if (!plan.metrics.empty()) {
    before = ReadProcessFigures(plan.metrics);
    if (!before.ok()) return before.status();
  }
  const std::int64_t asked = NowNs();
  const std::int64_t begin = asked + Ns(plan.warm_up_s.value_or(load.rate ? 1 : 0));
  Recorder recorder(begin, begin + Ns(plan.duration_s), Interrupt::at_ns());
  {
    const Progress progress(
        io, load.rate ? absl::StrCat("rate ", Short(*load.rate)) : absl::StrCat("callers ", load.callers), recorder);
    if (load.rate) {
      point.cpu = (*driver)->RunOpen(
          plan.poisson ? Arrivals::Poisson(*load.rate, plan.seed) : Arrivals::Constant(*load.rate), recorder);
    } else {
      point.cpu = (*driver)->RunClosed(load.callers, recorder);
    }
  }
  if (!plan.metrics.empty()) {
    const absl::StatusOr<ProcessFigures> after = ReadProcessFigures(plan.metrics);
    if (!after.ok()) return after.status();
    const double seconds = static_cast<double>(NowNs() - asked) / 1e9;
    point.server = ServerUse{(after->cpu_seconds - before->cpu_seconds) / seconds, after->resident_bytes};
  }
  point.recorded = recorder.Snapshot();
  if (point.recorded.stopped && point.recorded.end_ns <= begin + 1) return Interrupted();
  if (plan.verify_rows > 0 && point.recorded.answered > 0 && !point.recorded.stopped) {
    const absl::StatusOr<CheckResult> check = Verify(server, workload, (*driver)->TakeReplies(), plan);
    if (!check.ok()) return check.status();
    point.check = *check;
  }
  return point;
}

}  // namespace attnd::client
