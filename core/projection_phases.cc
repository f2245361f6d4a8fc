#include "core/projection_phases.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/arrival.h"
#include "core/checked.h"
#include "core/open_blocks.h"
#include "core/pack.h"
#include "core/projection.h"
#include "core/projection_share.h"
#include "core/reference.h"
#include "core/rotary.h"

namespace attnd {
namespace {

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
void AddShared(SharedRows& rows, const Linear& linear, const ForExecutor& take, ReadyItems ready = nullptr) {
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

}  // namespace

void AddProjection(Run* run, const ForExecutor& take) {
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

void AddProjectedOutputs(Run* run, const ForExecutor& take) {
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

void AddRotary(Run* run, const ForExecutor& take) {
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

void AddProjectOut(Run* run, const ForExecutor& take) {
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

}  // namespace attnd
