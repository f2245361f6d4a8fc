// How the main path names its phases, and the two things that can be done with them: keep them for the executor, or run
// them at once. Thread rule: as core/run.h says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/checked.h"
#include "core/executor.h"
#include "core/row_sink.h"
#include "core/run.h"

namespace attnd {

// Work below this many multiply-adds is not worth a turn at the executor: several items share a unit.
constexpr std::int64_t kUnitMultiplyAddsMin = std::int64_t{1} << 18;

// About, of one core; nothing depends on it but when another worker is worth waking.
constexpr double kMultiplyAddsPerSecond = 5e10;

// A phase is `items` pieces of work, each of about `cost` multiply-adds, in any order and all of them before the next
// phase; whether they write rows to the sink decides whether its HasRoom holds them back. A piece that gave way returns
// its rest. `ready`, where given, says how many of the first items have what they read (core/arrival.h). `meeting` is
// Phase::meeting. What is done with a phase is up to whoever takes it: one of the two below.
enum class Sink { kUntouched, kWritten };
using ReadyItems = std::function<std::int64_t()>;

// `count` of a problem that is still coming; null when all of it is there.
template <class Count>
ReadyItems WhileComing(const Run* run, Count count) {
  if (run->arrived == nullptr) return nullptr;
  return [run, count] { return count(*run->problem, *run->arrived); };
}

// What is left of a piece; most kinds always finish.
template <class Work>
std::unique_ptr<Rest> RunItem(const Work& work, std::int64_t item, WorkerContext& context) {
  if constexpr (std::is_void_v<decltype(work(item, context))>) {
    work(item, context);
    return nullptr;
  } else {
    return work(item, context);
  }
}

// Keeps phases for the executor, their items grouped into units.
struct ForExecutor {
  std::vector<Phase>& phases;
  RowSink& sink;
  double& multiply_adds;  // of all phases

  template <class Work>
  void operator()(std::int64_t items, std::int64_t cost, Sink writes, Work work, ReadyItems ready = nullptr,
                  bool meeting = false) const {
    const std::int64_t group = std::max<std::int64_t>(1, kUnitMultiplyAddsMin / std::max<std::int64_t>(1, cost));
    Phase phase;
    phase.units = CeilDiv(items, group);
    phase.meeting = meeting;
    phase.unit_time = absl::Seconds(static_cast<double>(group) * static_cast<double>(cost) / kMultiplyAddsPerSecond);
    phase.run = [items, group, work = std::move(work)](std::int64_t unit,
                                                       WorkerContext& context) -> std::unique_ptr<Rest> {
      if (group == 1) return RunItem(work, unit, context);
      const auto* const waiting = std::exchange(context.waiting, nullptr);  // together they are short: none gives way
      const std::int64_t end = std::min(items, (unit + 1) * group);
      for (std::int64_t item = unit * group; item < end; ++item) work(item, context);
      context.waiting = waiting;
      return nullptr;
    };
    if (writes == Sink::kWritten || ready != nullptr) {
      phase.ready = [&rows = sink, writes, items, group, units = phase.units, ready = std::move(ready)] {
        if (writes == Sink::kWritten && !rows.HasRoom()) return std::int64_t{0};
        const std::int64_t first = ready == nullptr ? items : ready();
        return first >= items ? units : first / group;
      };
    }
    multiply_adds += static_cast<double>(items) * static_cast<double>(cost);
    phases.push_back(std::move(phase));
  }
};

// Runs phases where they are met.
struct RightHere {
  WorkerContext& context;
  const CancelToken& cancel;

  template <class Work>
  void operator()(std::int64_t items, std::int64_t /*cost*/, Sink /*writes*/, Work work, ReadyItems /*ready*/ = nullptr,
                  bool /*meeting*/ = false) const {
    for (std::int64_t item = 0; item < items && !cancel.ShouldStop(); ++item) work(item, context);
  }
};

}  // namespace attnd
