// What became of every request, in memory that does not grow with the run: histograms, three windows, a timeline.
// A request belongs to the moment it was due. Thread rule: any thread; a lock inside.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/bench/interrupt.h"
#include "client/cli/histogram.h"

namespace attnd::client {

// One request's end, times in nanoseconds of one clock.
struct Outcome {
  std::int64_t due_ns = 0, sent_ns = 0, done_ns = 0;
  std::int64_t client_ns = 0;  // what this process added after sent_ns, such as converting the answer
  absl::Status status;
  // Of the answered.
  std::int64_t queue_us = 0, compute_us = 0;
  double flops = 0, tensor_bytes = 0, tokens = 0;
};

struct Window {
  std::int64_t answered = 0;
  double seconds = 0;  // in which its requests were due
  Histogram latency_ns;
};

struct Moment {  // one step of the timeline
  std::int64_t answered = 0, refused = 0, failed = 0;
  Histogram latency_ns;
};

struct Recorded {
  std::int64_t begin_ns = 0, end_ns = 0;  // what was due before does not count, and nothing is sent after
  bool stopped = false;                   // the end came before its time
  double step_seconds = 0;                // of the timeline
  std::int64_t last_done_ns = 0;
  std::int64_t answered = 0;
  std::int64_t refused = 0;  // RESOURCE_EXHAUSTED: the server protects itself
  std::int64_t unsent = 0;   // due, and never sent: no room for one more in flight
  std::int64_t held = 0;     // sent late because there was no room
  std::map<absl::StatusCode, std::int64_t> failed;
  absl::Status first_failure;
  Histogram latency_ns, lateness_ns, queue_us, compute_us;
  // Sums over the answered: the parts of latency, and what was done.
  double client_ns = 0, wire_ns = 0, queue_ns = 0, compute_ns = 0;
  double flops = 0, tensor_bytes = 0, tokens = 0;
  std::array<Window, 3> windows;
  std::vector<Moment> timeline;

  double seconds() const;  // from the first moment to the last, or to the last answer when that came later
  std::int64_t failures() const;
};

class Recorder {
 public:
  // The load ends at end_ns, or when the clock reaches `stop_ns`, which may be set meanwhile and outlives this.
  Recorder(std::int64_t begin_ns, std::int64_t end_ns, const std::atomic<std::int64_t>& stop_ns);
  Recorder(std::int64_t begin_ns, std::int64_t end_ns);

  void Done(const Outcome& outcome);
  // How late a request went out for no fault of the server's, and whether it had waited for room.
  void Late(std::int64_t due_ns, std::int64_t lateness_ns, bool held);
  void Unsent(std::int64_t count);

  std::int64_t begin_ns() const { return begin_ns_; }
  std::int64_t end_ns() const { return std::min(end_ns_, stop_ns_.load(std::memory_order_relaxed)); }
  bool stopped() const { return end_ns() < end_ns_; }
  Recorded Snapshot() const;

 private:
  bool Counts(std::int64_t due_ns) const { return due_ns >= begin_ns_; }

  const std::int64_t begin_ns_, end_ns_;  // as planned
  const std::atomic<std::int64_t>& stop_ns_;
  mutable std::mutex mutex_;
  Recorded recorded_;
};

}  // namespace attnd::client
