// One run of a problem, as its units see it, and what units have in common.
// Thread rule: a Run is shared by all units of its job; a unit belongs to one worker at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/attention.h"
#include "core/buffer.h"
#include "core/checked.h"
#include "core/executor.h"
#include "core/projection_share.h"
#include "core/reference.h"
#include "core/row_sink.h"
#include "core/tile_plan.h"

namespace attnd {

// What all phases of one run share; it outlives them.
struct Run {
  Run(std::shared_ptr<const Problem> validated, RowSink& rows, std::shared_ptr<CancelToken> token,
      const Arrived* coming = nullptr)
      : problem(std::move(validated)), sink(rows), cancel(std::move(token)), arrived(coming) {}

  std::shared_ptr<const Problem> problem;
  RowSink& sink;
  std::shared_ptr<CancelToken> cancel;
  const Arrived* arrived = nullptr;             // null: every byte is there
  std::optional<TilePlan> tiles;                // tiled mode
  std::unique_ptr<Reference> reference;         // reference mode
  AlignedBuffer<double> reference_heads;        // [B, Nq, Hq, d_v], with w_o in reference mode
  std::atomic<std::int64_t> nonfinite_rows{0};  // of reference mode
  // Where x has few rows, in tiled mode: x on its way through W_Q, W_K and W_V, and what was attended on its way
  // through W_O into projected_out [B, Nq, d_out], which is there when `attended` says so.
  std::optional<SharedRows> x_rows, attended_rows;
  std::atomic<bool> attended{false};
  AlignedBuffer<float> projected_out;

  AttentionReport Report(const JobReport& job) const {
    if (!tiles.has_value()) return {job, nonfinite_rows};
    AttentionReport report{job, tiles->nonfinite_rows, tiles->tiles(), tiles->tiles_run};
    for (const auto* rows : {&x_rows, &attended_rows}) {
      if (rows->has_value()) report.weight_blocks_shared += (*rows)->blocks_shared();
    }
    return report;
  }

  // Other jobs may take rows of this one's along, until Leave.
  void Enter(Executor& executor, const std::shared_ptr<Job>& job, std::int64_t weight) {
    for (auto* rows : {&x_rows, &attended_rows}) {
      if (rows->has_value()) (*rows)->Enter(executor, job, weight);
    }
  }
  void Leave() {
    for (auto* rows : {&x_rows, &attended_rows}) {
      if (rows->has_value()) (*rows)->Leave();
    }
  }
};

// A unit that goes on where it was: it keeps the scratch that holds what it came to, which it got from the worker that
// began it and leaves to the one that ends it.
class ResumableUnit : public Rest {
 public:
  explicit ResumableUnit(WorkerContext& context) : scratch_(std::move(context.scratch)) {}
  bool Run(WorkerContext& context) final {
    if (!GoOn(context, scratch_)) return false;
    context.scratch = std::move(scratch_);
    return true;
  }

 private:
  // False when it gave way, true when it is done or was stopped.
  virtual bool GoOn(const WorkerContext& context, Scratch& scratch) = 0;

  Scratch scratch_;
};

// Begins a unit; what is left of it when it gave way.
template <class Unit, class... Arguments>
std::unique_ptr<Rest> Begin(WorkerContext& context, Arguments&&... arguments) {
  auto unit = std::make_unique<Unit>(context, std::forward<Arguments>(arguments)...);
  if (unit->Run(context)) return nullptr;
  return unit;
}

// An item number taken apart as (sequence, head, tile of rows).
struct Place {
  std::int64_t b = 0, h = 0, first_row = 0, rows = 0;
};
inline Place PlaceOf(std::int64_t item, std::int64_t heads, std::int64_t rows, std::int64_t tile_rows) {
  const std::int64_t tiles = CeilDiv(rows, tile_rows);
  const std::int64_t first_row = item % tiles * tile_rows;
  return {item / tiles / heads, item / tiles % heads, first_row, std::min(tile_rows, rows - first_row)};
}

}  // namespace attnd
