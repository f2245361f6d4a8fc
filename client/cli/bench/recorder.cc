#include "client/cli/bench/recorder.h"

#include <algorithm>

namespace attnd::client {

namespace {

// Steps of the timeline: as many as a chart shows, none shorter than this.
constexpr std::int64_t kStepsMax = 60;
constexpr std::int64_t kStepNs = 50'000'000;

const std::atomic<std::int64_t> never_stopped{kNever};

}  // namespace

double Recorded::seconds() const { return static_cast<double>(std::max(end_ns, last_done_ns) - begin_ns) / 1e9; }

std::int64_t Recorded::failures() const {
  std::int64_t sum = 0;
  for (const auto& [code, count] : failed) sum += count;
  return sum;
}

Recorder::Recorder(std::int64_t begin_ns, std::int64_t end_ns) : Recorder(begin_ns, end_ns, never_stopped) {}

Recorder::Recorder(std::int64_t begin_ns, std::int64_t end_ns, const std::atomic<std::int64_t>& stop_ns)
    : begin_ns_(begin_ns), end_ns_(std::max(end_ns, begin_ns + 1)), stop_ns_(stop_ns) {
  recorded_.begin_ns = begin_ns_;
  recorded_.end_ns = end_ns_;
  const std::int64_t steps = std::clamp<std::int64_t>((end_ns_ - begin_ns_) / kStepNs, 1, kStepsMax);
  recorded_.timeline.resize(static_cast<std::size_t>(steps));
  recorded_.step_seconds = static_cast<double>(end_ns_ - begin_ns_) / 1e9 / static_cast<double>(steps);
  for (Window& window : recorded_.windows) window.seconds = static_cast<double>(end_ns_ - begin_ns_) / 3e9;
}

void Recorder::Done(const Outcome& o) {
  if (!Counts(o.due_ns)) return;
  const double share = static_cast<double>(o.due_ns - begin_ns_) / static_cast<double>(end_ns_ - begin_ns_);
  const std::scoped_lock lock(mutex_);
  Recorded& r = recorded_;
  r.last_done_ns = std::max(r.last_done_ns, o.done_ns);
  const auto part = [&](std::size_t parts) {
    return std::min(static_cast<std::size_t>(share * static_cast<double>(parts)), parts - 1);
  };
  Moment& moment = r.timeline[part(r.timeline.size())];
  if (!o.status.ok()) {
    if (absl::IsResourceExhausted(o.status)) {
      ++r.refused;
      ++moment.refused;
    } else {
      ++r.failed[o.status.code()];
      ++moment.failed;
      r.first_failure.Update(o.status);
    }
    return;
  }
  const std::int64_t latency = o.done_ns - o.due_ns;
  ++r.answered;
  ++moment.answered;
  r.latency_ns.Add(latency);
  moment.latency_ns.Add(latency);
  Window& window = r.windows[part(3)];
  ++window.answered;
  window.latency_ns.Add(latency);
  r.queue_us.Add(o.queue_us);
  r.compute_us.Add(o.compute_us);
  // What a server says of itself cannot be more than the whole: on a stream its compute goes on while pieces travel.
  const auto whole = static_cast<double>(latency);
  const std::int64_t ours = std::max<std::int64_t>(o.sent_ns - o.due_ns, 0) + o.client_ns;
  const double client = std::min(whole, static_cast<double>(ours));
  const double compute = std::min(whole - client, static_cast<double>(o.compute_us) * 1e3);
  const double queue = std::min(whole - client - compute, static_cast<double>(o.queue_us) * 1e3);
  r.client_ns += client;
  r.compute_ns += compute;
  r.queue_ns += queue;
  r.wire_ns += whole - client - compute - queue;
  r.flops += o.flops;
  r.tensor_bytes += o.tensor_bytes;
  r.tokens += o.tokens;
}

void Recorder::Late(std::int64_t due_ns, std::int64_t lateness_ns, bool held) {
  if (!Counts(due_ns)) return;
  const std::scoped_lock lock(mutex_);
  recorded_.lateness_ns.Add(lateness_ns);
  if (held) ++recorded_.held;
}

void Recorder::Unsent(std::int64_t count) {
  const std::scoped_lock lock(mutex_);
  recorded_.unsent += count;
}

Recorded Recorder::Snapshot() const {
  const std::scoped_lock lock(mutex_);
  Recorded snapshot = recorded_;
  if (!stopped()) return snapshot;
  snapshot.stopped = true;
  snapshot.end_ns = std::max(end_ns(), begin_ns_ + 1);
  for (std::size_t w = 0; w < snapshot.windows.size(); ++w) {
    Window& window = snapshot.windows[w];
    const double begun = static_cast<double>(w) * window.seconds;
    window.seconds = std::clamp(snapshot.seconds() - begun, 0.0, window.seconds);
  }
  // Whole steps: a rate over a part of one would be none.
  const double whole = static_cast<double>(snapshot.end_ns - begin_ns_) / 1e9 / snapshot.step_seconds;
  snapshot.timeline.resize(std::min(snapshot.timeline.size(), static_cast<std::size_t>(whole)));
  return snapshot;
}

}  // namespace attnd::client
