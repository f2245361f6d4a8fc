#include "core/attention.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "core/arrival.h"
#include "core/checked.h"
#include "core/clock.h"
#include "core/flush_subnormals.h"
#include "core/open_blocks.h"
#include "core/pack.h"
#include "core/phases.h"
#include "core/projection.h"
#include "core/projection_phases.h"
#include "core/reference.h"
#include "core/reference_phases.h"
#include "core/run.h"
#include "core/tile.h"
#include "core/tiling.h"

namespace attnd {
namespace {

// A problem of at most this many, 10 to 20 microseconds, costs less than the call that brought it, and less than to
// wake a worker: it is computed by the thread that reads the call.
constexpr std::int64_t kHereMultiplyAddsMax = std::int64_t{1} << 20;
// A problem above this many takes more than a slice or two: it is long, and short ones go first.
constexpr double kShortMultiplyAddsMax = 1 << 28;

// How many heads the unit of this place covers: where K and V are read in place, the first head of a group (or of as
// many of its heads as a tile holds) takes the others along, and theirs have nothing to do.
std::int64_t HeadsOfUnit(const TilePlan& plan, const Place& place) {
  const std::int64_t q_len = plan.problem.q_len[static_cast<std::size_t>(place.b)];
  if (!InPlace(plan.problem, place.b) || q_len == 0 || place.first_row > 0) return 1;
  const std::int64_t group = plan.problem.q_heads / plan.problem.kv_heads, in_group = place.h % group;
  const std::int64_t together = std::min(group, plan.tile_rows / std::min(q_len, place.rows));
  return in_group % together == 0 ? std::min(together, group - in_group) : 0;
}

// A query tile that gave way. Made only then: a small problem allocates nothing.
class RestOfTile final : public ResumableUnit {
 public:
  RestOfTile(WorkerContext& context, const struct Run& run, const QueryTile& tile)
      : ResumableUnit(context), run_(run), tile_(tile) {}

 private:
  bool GoOn(const WorkerContext& context, Scratch&) override { return tile_.Attend(run_.sink, *run_.cancel, context); }

  const struct Run& run_;
  QueryTile tile_;
};

// One range of the keys of one kv head, with all the heads that share it, a tile of them after the other.
class RangeUnit final : public ResumableUnit {
 public:
  // first: the first head of the group.
  RangeUnit(WorkerContext& context, struct Run& run, const Place& first, std::int64_t range)
      : ResumableUnit(context),
        run_(run),
        range_(range),
        next_(first),
        end_head_(first.h + run.problem->q_heads / run.problem->kv_heads) {}

 private:
  bool GoOn(const WorkerContext& context, Scratch& scratch) override {
    for (; next_.h < end_head_; ++next_.h) {
      if (!tile_.has_value()) {
        const std::int64_t heads = HeadsOfUnit(*run_.tiles, next_);
        if (heads == 0) continue;
        tile_.emplace(*run_.tiles, scratch, next_.b, next_.h, heads, 0, next_.rows);
      }
      if (!tile_->AttendRange(range_, *run_.cancel, context)) return false;
      tile_.reset();
    }
    return true;
  }

  struct Run& run_;
  const std::int64_t range_;
  Place next_;
  const std::int64_t end_head_;
  std::optional<QueryTile> tile_;  // of the heads from next_ on, when begun
};

// Where keys are cut: every range of every kv head, with all the heads that share it, into the plan's parts.
template <class Take>
void AddRanges(Run* run, Take take) {
  const Problem& problem = *run->problem;
  const std::int64_t ranges = run->tiles->ranges, width = RangeKeys(problem.d_k, problem.d_v);
  const std::int64_t group = problem.q_heads / problem.kv_heads;
  take(
      problem.batch * ranges * problem.kv_heads,
      std::min(problem.q_rows, kInPlaceQueriesMax) * group * width * (problem.d_k + problem.d_v), Sink::kUntouched,
      [run, ranges, group](std::int64_t item, WorkerContext& context) -> std::unique_ptr<Rest> {
        const Problem& p = *run->problem;
        const std::int64_t kv_head = item % p.kv_heads, range = item / p.kv_heads % ranges;
        const Place first{item / p.kv_heads / ranges, kv_head * group, 0, std::min(run->tiles->tile_rows, p.q_rows)};
        if (range >= Ranges(p, first.b)) return nullptr;
        return Begin<RangeUnit>(context, *run, first, range);
      },
      WhileComing(run, [items = ranges * problem.kv_heads](const Problem& p, const Arrived& arrived) {
        return SequencesReady(p, arrived) * items;
      }));
}

// Weights and scores of some rows of one head.
class EmitUnit final : public ResumableUnit {
 public:
  EmitUnit(WorkerContext& context, struct Run& run, const Place& place, std::span<const OutputKind> kinds)
      : ResumableUnit(context), run_(run), place_(place), kinds_(kinds), blocks_(run.sink) {}

 private:
  bool GoOn(const WorkerContext& context, Scratch& scratch) override {
    if (!tile_.has_value()) tile_.emplace(*run_.tiles, scratch, place_.b, place_.h, 1, place_.first_row, place_.rows);
    return tile_->Emit(kinds_, blocks_, *run_.cancel, context);
  }

  struct Run& run_;
  const Place place_;
  const std::span<const OutputKind> kinds_;
  OpenBlocks blocks_;
  std::optional<QueryTile> tile_;
};

template <class Take>
void AddAttention(Run* run, Take take) {
  const Problem& problem = *run->problem;
  TilePlan& plan = *run->tiles;
  const std::int64_t strips = PackedStrips(problem);
  take(
      plan.packs_ahead ? problem.batch * problem.kv_heads * plan.key_tiles * strips : 0,
      std::min(problem.kv_rows, kKeyTileColumns) * CeilDiv(problem.d_k + problem.d_v, strips) * 8, Sink::kUntouched,
      [run, strips](std::int64_t item, WorkerContext&) {
        const std::int64_t tiles = run->tiles->key_tiles, heads = run->problem->kv_heads, tile = item / strips;
        PackAhead(*run->tiles, tile / tiles / heads, tile / tiles % heads, tile % tiles, item % strips);
      },
      WhileComing(run, [run, strips](const Problem& p, const Arrived& arrived) {
        return KeyTilesReady(p, run->tiles->key_tiles, PacksValuesAhead(p), arrived) * strips;
      }));
  AddRanges(run, take);
  const std::int64_t tile_rows = plan.tile_rows, row_cost = problem.kv_rows * (problem.d_k + problem.d_v) + 256;
  bool grouped = false;
  for (std::int64_t b = 0; b < problem.batch; ++b) grouped = grouped || InPlace(problem, b);
  take(
      problem.batch * problem.q_heads * CeilDiv(problem.q_rows, tile_rows),
      std::min(tile_rows, problem.q_rows) * row_cost, Sink::kWritten,
      [run, tile_rows](std::int64_t item, WorkerContext& context) -> std::unique_ptr<Rest> {
        const Place place = PlaceOf(item, run->problem->q_heads, run->problem->q_rows, tile_rows);
        const std::int64_t heads = HeadsOfUnit(*run->tiles, place);
        if (heads == 0) return nullptr;
        QueryTile tile(*run->tiles, context.scratch, place.b, place.h, heads, place.first_row, place.rows);
        if (tile.Attend(run->sink, *run->cancel, context)) return nullptr;
        return std::make_unique<RestOfTile>(context, *run, tile);
      },
      WhileComing(run, [tile_rows, grouped](const Problem& p, const Arrived& arrived) {
        return QueryTilesReady(p, tile_rows, grouped, arrived);
      }));
  std::vector<OutputKind> kinds;
  for (const OutputKind kind : problem.extras) {
    if (IsOfKeys(kind)) kinds.push_back(kind);
  }
  if (kinds.empty()) return;
  // Whole rows of Nk columns leave together, about kEmitBytes at a time.
  const std::int64_t emit_rows =
      std::clamp<std::int64_t>(kEmitBytes / std::max<std::int64_t>(1, problem.kv_rows * 4), 1, tile_rows);
  take(problem.batch * problem.q_heads * CeilDiv(problem.q_rows, emit_rows),
       std::min(emit_rows, problem.q_rows) * row_cost, Sink::kWritten,
       [run, emit_rows, kinds](std::int64_t item, WorkerContext& context) {
         const Place place = PlaceOf(item, run->problem->q_heads, run->problem->q_rows, emit_rows);
         return Begin<EmitUnit>(context, *run, place, kinds);
       });
}

// See kHereMultiplyAddsMax. Only where attention is all there is to do.
bool IsSmall(const Problem& problem) {
  if (problem.reference || problem.projection.has_value() || problem.rotary.has_value()) return false;
  constexpr std::int64_t kPackingRows = 8, kRowCost = 256;  // packing K costs about as much as eight rows
  const std::optional<std::int64_t> row = CheckedSum(
      {CheckedProduct({problem.kv_rows, problem.d_k + problem.d_v}).value_or(kHereMultiplyAddsMax), kRowCost});
  const std::optional<std::int64_t> all =
      row ? CheckedProduct({problem.batch, problem.q_heads, problem.q_rows + kPackingRows, *row}) : row;
  return all && *all <= kHereMultiplyAddsMax;
}

// All of it on the calling thread, whose scratch stays for the next time.
AttentionReport AttendHere(std::shared_ptr<const Problem> problem, RowSink& sink, std::shared_ptr<CancelToken> cancel) {
  const FlushSubnormals flush;
  thread_local WorkerContext context;
  const absl::Time start = Now();
  Run run(std::move(problem), sink, std::move(cancel));
  run.tiles.emplace(*run.problem);
  AddAttention(&run, RightHere{context, *run.cancel});
  JobReport report;
  report.status = run.cancel->status();
  report.computed = report.worked = Now() - start;
  report.slices = report.workers = 1;
  return run.Report(report);
}

}  // namespace

std::shared_ptr<Job> StartAttention(std::shared_ptr<const Problem> problem, RowSink& sink, Executor& executor,
                                    std::shared_ptr<CancelToken> cancel,
                                    std::function<void(const AttentionReport&)> done, JobClass job_class,
                                    const Arrived* arrived) {
  if (arrived == nullptr && IsSmall(*problem) && sink.HasRoom()) {
    const AttentionReport report = AttendHere(std::move(problem), sink, std::move(cancel));
    done(report);
    return nullptr;
  }
  auto run = std::make_shared<Run>(std::move(problem), sink, cancel, arrived);
  std::vector<Phase> phases;
  double multiply_adds = 0;
  const ForExecutor take{phases, sink, multiply_adds};
  if (run->problem->reference) {
    AddReference(run.get(), take);
  } else {
    run->tiles.emplace(*run->problem);
    if (run->problem->projection.has_value()) AddProjection(run.get(), take);
    AddProjectedOutputs(run.get(), take);
    if (run->problem->rotary.has_value()) AddRotary(run.get(), take);
    AddAttention(run.get(), take);
    if (run->problem->d_out > 0) AddProjectOut(run.get(), take);
  }
  job_class.is_long = multiply_adds > kShortMultiplyAddsMax;
  job_class.deadline = cancel->deadline();
  const std::int64_t weight = job_class.weight;
  auto job = std::make_shared<Job>(
      std::move(phases), std::move(cancel),
      [run, done = std::move(done)](const JobReport& report) {
        run->Leave();
        done(run->Report(report));
      },
      std::move(job_class));
  run->Enter(executor, job, weight);
  try {
    executor.Submit(job);
  } catch (const std::bad_alloc&) {
    run->Leave();
    throw;
  }
  return job;
}

absl::StatusOr<DenseAnswer> Attend(const Problem& problem, Executor& executor) {
  DenseAnswer answer;
  answer.tensors.resize(kOutputKindCount);
  DenseSink sink(problem, [&answer](OutputKind kind, std::int64_t bytes) {
    auto& tensor = answer.tensors[static_cast<std::size_t>(kind)];
    tensor.resize(static_cast<std::size_t>(bytes));
    return tensor.data();
  });
  std::mutex mutex;
  std::condition_variable finished;
  bool is_done = false;
  AttentionReport report;
  // The problem outlives the wait below, so the pointer need not own it.
  StartAttention(std::shared_ptr<const Problem>(std::shared_ptr<void>(), &problem), sink, executor,
                 std::make_shared<CancelToken>(), [&](const AttentionReport& result) {
                   const std::lock_guard lock(mutex);
                   report = result;
                   is_done = true;
                   finished.notify_one();
                 });
  std::unique_lock lock(mutex);
  finished.wait(lock, [&] { return is_done; });
  if (!report.status.ok()) return report.status;
  answer.nonfinite_rows = report.nonfinite_rows;
  answer.worked = report.worked;
  return answer;
}

std::int64_t ScratchBytesPerThread(const Problem& problem) {
  // A row of reference mode stands in float64 beside its scratch.
  if (problem.reference) return Reference::ScratchBytes(problem) + 8 * std::max(problem.d_v, problem.d_out);
  std::int64_t bytes = QueryTile::ScratchBytes(ScratchOf(problem));
  if (problem.projection.has_value())
    bytes = std::max(bytes, ProjectionScratchBytes() + kProjectionRows * problem.d_out * 4);
  return bytes;
}

}  // namespace attnd
