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
#include "core/gemm.h"
#include "core/open_blocks.h"
#include "core/pack.h"
#include "core/projection.h"
#include "core/projection_share.h"
#include "core/reference.h"
#include "core/reference_units.h"
#include "core/rotary.h"
#include "core/run.h"
#include "core/softmax.h"
#include "core/tile.h"
#include "core/tiling.h"

namespace attnd {
namespace {

// Work below this many multiply-adds is not worth a turn at the executor: several items share a unit.
constexpr std::int64_t kUnitMultiplyAddsMin = std::int64_t{1} << 18;
// A problem of at most this many, 10 to 20 microseconds, costs less than the call that brought it, and less than to
// wake a worker: it is computed by the thread that reads the call.
constexpr std::int64_t kHereMultiplyAddsMax = std::int64_t{1} << 20;
// A problem above this many takes more than a slice or two: it is long, and short ones go first.
constexpr double kShortMultiplyAddsMax = 1 << 28;

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

// Rows of x times one block of columns.
class ProjectUnit final : public ResumableUnit {
 public:
  ProjectUnit(WorkerContext& context, const struct Run& run, const ProjectionRows& product)
      : ResumableUnit(context), run_(run), product_(product) {}

 private:
  bool GoOn(const WorkerContext& context, Scratch& scratch) override {
    return Project(product_, scratch.Reserve(ProjectionScratchBytes()), *run_.cancel, context) ||
           run_.cancel->ShouldStop();
  }

  const struct Run& run_;
  ProjectionRows product_;
};

// A block of products that problems share, or, `to_the_end`, all that are left.
class SharedUnit final : public ResumableUnit {
 public:
  SharedUnit(WorkerContext& context, SharedRows& rows, bool to_the_end)
      : ResumableUnit(context), rows_(rows), to_the_end_(to_the_end) {}

 private:
  bool GoOn(const WorkerContext& context, Scratch& scratch) override {
    do {
      if (!block_.has_value()) block_ = rows_.Take();
      if (!block_.has_value()) return true;
      if (!rows_.Project(*block_, scratch.Reserve(ProjectionScratchBytes()), context)) return false;
      block_.reset();
    } while (to_the_end_);
    return true;
  }

  SharedRows& rows_;
  const bool to_the_end_;
  std::optional<std::size_t> block_;
};

// Of BringOthers, when it gave way.
class RestOfBringing final : public Rest {
 public:
  explicit RestOfBringing(SharedRows& rows) : rows_(rows) {}
  bool Run(WorkerContext& context) override { return rows_.BringOthers(context); }

 private:
  SharedRows& rows_;
};

// All products of the rows, a unit a block.
template <class Take>
void AddShared(SharedRows& rows, const Linear& linear, Take take, ReadyItems ready = nullptr) {
  constexpr std::int64_t kReadingRows = 8;  // to read weights costs about as much as to multiply so many rows
  const std::int64_t cost = (rows.rows() + kReadingRows) * linear.in * std::min(kProjectionColumns, linear.out);
  const auto add = [&](std::int64_t items, std::int64_t item_cost, bool to_the_end) {
    take(
        items, item_cost, Sink::kUntouched,
        [&rows, to_the_end](std::int64_t, WorkerContext& context) {
          return Begin<SharedUnit>(context, rows, to_the_end);
        },
        std::exchange(ready, nullptr), !to_the_end);
  };
  add(rows.blocks(), std::max(cost, kUnitMultiplyAddsMin), false);
  add(1, kUnitMultiplyAddsMin, true);  // what others began and gave back when there was no unit left
}

// Whether the problem's rows are few enough, and its weights large enough, to share products with others.
bool SharesProducts(const Problem& problem) {
  const std::int64_t rows = problem.batch * problem.q_rows;
  if (problem.reference || !problem.projection.has_value() || rows == 0 || rows > kSharingRowsMax) return false;
  const Projection& p = *problem.projection;
  double elements = static_cast<double>(p.d_model) * static_cast<double>(p.q.out + p.k.out + p.v.out);
  if (p.o.has_value()) elements += static_cast<double>(p.o->in) * static_cast<double>(p.o->out);
  return elements > kSharingWeightsMin;
}

template <class Take>
void AddProjection(Run* run, Take take) {
  const Problem& problem = *run->problem;
  const Projection& projection = *problem.projection;
  const std::int64_t rows = problem.batch * problem.q_rows;
  const std::vector<SharedRows::Product> targets = {{&projection.q, run->tiles->projected_q.data()},
                                                    {&projection.k, run->tiles->projected_k.data()},
                                                    {&projection.v, run->tiles->projected_v.data()}};
  if (SharesProducts(problem)) {
    const auto blocks_there = [](const Problem& p, const Arrived& arrived) {
      return RowBlocksOfX(p, kProjectionRows, arrived);
    };
    const ReadyItems is_there = WhileComing(run, blocks_there);
    const ProjectionRows x{nullptr, projection.x.dtype, projection.x.data, projection.d_model, rows};
    SharedRows& shared = run->x_rows.emplace(x, targets, *run->cancel, is_there);
    const std::int64_t blocks = shared.blocks();
    AddShared(
        shared, projection.q, take,
        is_there == nullptr ? is_there : [is_there, blocks] { return is_there() * blocks; });
    return;
  }
  for (const SharedRows::Product& target : targets) {
    const std::int64_t blocks = CeilDiv(target.linear->out, kProjectionColumns);
    take(
        CeilDiv(rows, kProjectionRows) * blocks,
        kProjectionRows * target.linear->in * std::min(kProjectionColumns, target.linear->out), Sink::kUntouched,
        [run, target, rows, blocks](std::int64_t item, WorkerContext& context) {
          const TensorView& x = run->problem->projection->x;
          const Linear& linear = *target.linear;
          const std::int64_t row = item / blocks * kProjectionRows, column = item % blocks * kProjectionColumns;
          return Begin<ProjectUnit>(
              context, *run,
              ProjectionRows{&linear, x.dtype, x.data + row * linear.in * ElementBytes(x.dtype), linear.in,
                             std::min(kProjectionRows, rows - row), target.out + row * linear.out, linear.out, column,
                             std::min(column + kProjectionColumns, linear.out)});
        },
        WhileComing(run, [blocks](const Problem& p, const Arrived& arrived) {
          return RowBlocksOfX(p, kProjectionRows, arrived) * blocks;
        }));
  }
}

template <class Take>
void AddProjectedOutputs(Run* run, Take take) {
  const Problem& problem = *run->problem;
  for (const OutputKind kind : problem.extras) {
    if (!IsProjected(kind)) continue;
    const auto shape = problem.OutputShape(kind);
    const std::int64_t items = shape[0] * shape[1] * CeilDiv(shape[2], kProjectionRows);
    take(items, kProjectionRows * shape[3] * 8, Sink::kWritten, [run, kind, shape](std::int64_t item, WorkerContext&) {
      const Place place = PlaceOf(item, shape[1], shape[2], kProjectionRows);
      const RowBlock block{kind, DType::kFloat32, place.b, place.h, place.first_row, place.rows, shape[3]};
      const RowSpan span = run->sink.Open(block);
      for (std::int64_t row = 0; row < place.rows; ++row) {
        std::byte* const target = span.data + row * span.stride_bytes;
        if (run->reference != nullptr) {
          const double* const source = run->reference->Projected(kind, place.b, place.h, place.first_row + row);
          for (std::int64_t c = 0; c < shape[3]; ++c) StoreFromDouble(DType::kFloat32, source[c], target + 4 * c);
          continue;
        }
        const TilePlan& plan = *run->tiles;
        const TensorView& view = kind == OutputKind::kProjectedQ   ? plan.q
                                 : kind == OutputKind::kProjectedK ? plan.k
                                                                   : plan.v;
        const std::byte* const source = view.Row(place.b, place.h, place.first_row + row);
        NarrowFromFloat(DType::kFloat32, reinterpret_cast<const float*>(source), shape[3], target);
      }
      run->sink.Close(block, span);
    });
  }
}

template <class Take>
void AddRotary(Run* run, Take take) {
  const Problem& problem = *run->problem;
  const auto add = [&](std::int64_t rows, std::int64_t heads,
                       void (*turn)(TilePlan&, std::int64_t, std::int64_t, std::byte*),
                       std::int64_t (*sequences)(const Problem&, const Arrived&)) {
    // A pair's angle costs about as much as a hundred multiply-adds.
    take(
        problem.batch * rows, problem.rotary->rotary_dim * (50 + 4 * heads), Sink::kUntouched,
        [run, rows, turn](std::int64_t item, WorkerContext& context) {
          turn(*run->tiles, item / rows, item % rows,
               context.scratch.Reserve(RotaryScratchBytes(*run->problem->rotary)));
        },
        WhileComing(run, [rows, sequences](const Problem& p, const Arrived& a) { return sequences(p, a) * rows; }));
  };
  add(problem.kv_rows, problem.kv_heads, &TurnKey, &SequencesOfK);  // keys come before queries
  add(problem.q_rows, problem.q_heads, &TurnQuery, &SequencesOfQ);
}

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

// [rows of one sequence, Hq * d_v] times W_O, unless they were projected with others'; rows beyond q_len are 0.
class ProjectOutUnit final : public ResumableUnit {
 public:
  ProjectOutUnit(WorkerContext& context, struct Run& run, const Place& place)
      : ResumableUnit(context),
        run_(run),
        block_{OutputKind::kOutput, run.problem->output_dtype, place.b, 0, place.first_row,
               place.rows,          run.problem->d_out},
        blocks_(run.sink),
        out_(run.attended_rows.has_value() ? 0 : place.rows * block_.columns),
        values_(out_.data()) {
    const Linear& linear = *run.problem->projection->o;
    const std::int64_t row = place.b * run.problem->q_rows + place.first_row;
    if (run.attended_rows.has_value()) {
      values_ = run.projected_out.data() + row * block_.columns;
      return;
    }
    const float* const heads = run.tiles->heads_out.data() + row * linear.in;
    product_ = {&linear,
                DType::kFloat32,
                reinterpret_cast<const std::byte*>(heads),
                linear.in,
                place.rows,
                out_.data(),
                linear.out,
                0,
                linear.out};
  }

 private:
  bool GoOn(const WorkerContext& context, Scratch& scratch) override {
    if (!Project(product_, scratch.Reserve(ProjectionScratchBytes()), *run_.cancel, context))
      return run_.cancel->ShouldStop();
    if (blocks_.count() == 0) blocks_.Open(block_);
    for (; stored_rows_ < block_.rows; ++stored_rows_) {
      if (context.ShouldPause()) return false;
      float* const values = values_ + stored_rows_ * block_.columns;
      if (block_.first_row + stored_rows_ >= run_.problem->q_len[static_cast<std::size_t>(block_.batch)])
        std::fill_n(values, block_.columns, 0.0F);
      const RowSpan& span = blocks_.span(0);
      NarrowFromFloat(block_.dtype, values, block_.columns, span.data + stored_rows_ * span.stride_bytes);
    }
    blocks_.Close();
    return true;
  }

  struct Run& run_;
  const RowBlock block_;
  OpenBlocks blocks_;
  const AlignedBuffer<float> out_;  // [rows, d_out]
  float* values_;                   // likewise: out_, or in projected_out
  ProjectionRows product_;          // into out_
  std::int64_t stored_rows_ = 0;
};

template <class Take>
void AddProjectOut(Run* run, Take take) {
  const Problem& problem = *run->problem;
  const Linear& linear = *problem.projection->o;
  std::int64_t cost = kProjectionRows * linear.in * linear.out;
  if (SharesProducts(problem)) {
    const std::int64_t rows = problem.batch * problem.q_rows;
    run->projected_out = AlignedBuffer<float>(rows * linear.out);
    const ProjectionRows attended{nullptr, DType::kFloat32,
                                  reinterpret_cast<const std::byte*>(run->tiles->heads_out.data()), linear.in, rows};
    SharedRows& shared =
        run->attended_rows.emplace(attended, std::vector{SharedRows::Product{&linear, run->projected_out.data()}},
                                   *run->cancel, [run] { return run->attended.load(); });
    take(1, kUnitMultiplyAddsMin, Sink::kUntouched, [run](std::int64_t, WorkerContext&) { run->attended = true; });
    const auto bring = [&shared](std::int64_t, WorkerContext& context) -> std::unique_ptr<Rest> {
      if (shared.BringOthers(context)) return nullptr;
      return std::make_unique<RestOfBringing>(shared);
    };
    take(1, kUnitMultiplyAddsMin, Sink::kUntouched, bring, nullptr, /*meeting=*/true);
    AddShared(shared, linear, take);
    cost = problem.q_rows * linear.out;
  }
  take(problem.batch * CeilDiv(problem.q_rows, kProjectionRows), cost, Sink::kWritten,
       [run](std::int64_t item, WorkerContext& context) {
         return Begin<ProjectOutUnit>(context, *run, PlaceOf(item, 1, run->problem->q_rows, kProjectionRows));
       });
}

// Float64 loops run about sixteen times slower than tiles, so their items count for that much more.
constexpr std::int64_t kReferenceCost = 16;

template <class Take>
void AddReference(Run* run, Take take) {
  const Problem& problem = *run->problem;
  run->reference = std::make_unique<Reference>(problem);
  if (problem.d_out > 0) {
    run->reference_heads = AlignedBuffer<double>(problem.batch * problem.q_rows * problem.q_heads * problem.d_v);
  }
  const std::int64_t d_model = problem.projection.has_value() ? problem.projection->d_model : 1;
  const std::int64_t heads_width = problem.q_heads * problem.d_k + problem.kv_heads * (problem.d_k + problem.d_v);
  take(run->reference->prepare_units(), kReferenceCost * d_model * heads_width, Sink::kUntouched,
       [run](std::int64_t item, WorkerContext& context) { return BeginReferencePrepare(*run, item, context); });
  AddProjectedOutputs(run, take);
  take(problem.batch * problem.q_heads * problem.q_rows,
       kReferenceCost * (problem.kv_rows * (problem.d_k + problem.d_v) + 64), Sink::kWritten,
       [run](std::int64_t item, WorkerContext& context) {
         return BeginReferenceRow(*run, PlaceOf(item, run->problem->q_heads, run->problem->q_rows, 1), context);
       });
  if (problem.d_out == 0) return;
  take(problem.batch * problem.q_rows, kReferenceCost * problem.q_heads * problem.d_v * problem.d_out, Sink::kWritten,
       [run](std::int64_t item, WorkerContext& context) { return BeginReferenceProjectOut(*run, item, context); });
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

DenseSink::DenseSink(const Problem& problem,
                     const std::function<std::byte*(OutputKind kind, std::int64_t bytes)>& allocate) {
  for (int number = 1; number < kOutputKindCount; ++number) {
    const auto kind = static_cast<OutputKind>(number);
    if (!problem.Wants(kind)) continue;
    const std::array<std::int64_t, 4> shape = problem.OutputShape(kind);
    const std::int64_t row_bytes = shape[3] * ElementBytes(problem.OutputDType(kind));
    Target& target = targets_[number];
    target.data = allocate(kind, shape[0] * shape[1] * shape[2] * row_bytes);
    target.batch_stride = shape[1] * shape[2] * row_bytes;
    const bool rows_first = kind == OutputKind::kOutput && problem.layout == Layout::kBNHD;
    target.head_stride = rows_first ? row_bytes : shape[2] * row_bytes;
    target.row_stride = rows_first ? shape[1] * row_bytes : row_bytes;
  }
}

RowSpan DenseSink::Open(const RowBlock& block) {
  const Target& target = targets_[static_cast<int>(block.kind)];
  return {target.data + block.batch * target.batch_stride + block.head * target.head_stride +
              block.first_row * target.row_stride,
          target.row_stride};
}

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

KernelInfo GetKernelInfo() {
  KernelInfo info;
  const std::pair<const char*, bool> sets[] = {{"sse4.2", __builtin_cpu_supports("sse4.2")},
                                               {"avx2", __builtin_cpu_supports("avx2")},
                                               {"fma", __builtin_cpu_supports("fma")},
                                               {"avx512f", __builtin_cpu_supports("avx512f")},
                                               {"avx512bw", __builtin_cpu_supports("avx512bw")},
                                               {"avx512vnni", __builtin_cpu_supports("avx512vnni")},
                                               {"avx512bf16", __builtin_cpu_supports("avx512bf16")}};
  for (const auto& [name, found] : sets) {
    if (found) info.instruction_sets_found.emplace_back(name);
  }
  info.instruction_set_used = std::string(SimdTargetName()) + ", " + GemmLibraryText();
  if (HasPairProducts()) info.instruction_set_used += ", bfloat16 pairs";
  return info;
}

absl::Status CheckMachine() {
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return absl::OkStatus();
  return absl::FailedPreconditionError("this processor lacks AVX2 or FMA, and attnd needs both");
}

void LimitToAvx2() {
  LimitSimdToAvx2();
  LimitGemmToAvx2();
}

void SetKernelCacheMax(std::int64_t kernels) { SetGemmCacheMax(kernels); }

}  // namespace attnd
