#include "core/reference_phases.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/open_blocks.h"
#include "core/projection_phases.h"

namespace attnd {
namespace {

// True when every stored element is finite.
bool StoreDoubles(DType dtype, const double* source, std::int64_t count, std::byte* target) {
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    std::byte* const element = target + i * ElementBytes(dtype);
    StoreFromDouble(dtype, source[i], element);
    finite = finite && std::isfinite(LoadAsDouble(dtype, element));
  }
  return finite;
}

// What the units of reference mode share: one call of the reference, interrupted to give way or to stop.
class ReferenceUnit : public ResumableUnit {
 public:
  ReferenceUnit(WorkerContext& context, struct Run& run) : ResumableUnit(context), run_(run) {}

 protected:
  // False when interrupted.
  virtual bool Compute(std::byte* scratch, Reference::Progress& at, const Reference::Interrupt& interrupt) = 0;
  // What it computed.
  virtual void Store() {}

  struct Run& run_;

 private:
  bool GoOn(const WorkerContext& context, Scratch& scratch) override {
    if (kept_ == nullptr) kept_ = scratch.Reserve(Reference::ScratchBytes(*run_.problem));
    const bool done = Compute(kept_, at_, [&] { return run_.cancel->ShouldStop() || context.ShouldPause(); });
    if (!done) return run_.cancel->ShouldStop();
    Store();
    return true;
  }

  Reference::Progress at_;
  std::byte* kept_ = nullptr;  // holds what it came to from one turn to the next
};

// One token's projections and rotary embedding.
class ReferencePrepareUnit final : public ReferenceUnit {
 public:
  ReferencePrepareUnit(WorkerContext& context, struct Run& run, std::int64_t unit)
      : ReferenceUnit(context, run), unit_(unit) {}

 private:
  bool Compute(std::byte* scratch, Reference::Progress& at, const Reference::Interrupt& interrupt) override {
    return run_.reference->Prepare(unit_, scratch, at, interrupt);
  }

  const std::int64_t unit_;
};

// One row, its output and whatever else is wanted. What is as wide as the keys is open from the beginning.
class ReferenceRowUnit final : public ReferenceUnit {
 public:
  ReferenceRowUnit(WorkerContext& context, struct Run& run, const Place& place)
      : ReferenceUnit(context, run),
        place_(place),
        blocks_(run.sink),
        output_(static_cast<std::size_t>(run.problem->d_v)) {
    row_.output = output_.data();
    row_.lse = &lse_;
    for (const OutputKind kind : run.problem->extras) {
      if (!IsOfKeys(kind)) continue;
      auto* const target = reinterpret_cast<float*>(Open(kind, DType::kFloat32, run.problem->kv_rows));
      if (kind == OutputKind::kWeights)
        row_.weights = target;
      else
        row_.scores[static_cast<int>(kind) - static_cast<int>(OutputKind::kScoresDot)] = target;
    }
  }

 private:
  std::byte* Open(OutputKind kind, DType dtype, std::int64_t columns) {
    return blocks_.Open({kind, dtype, place_.b, place_.h, place_.first_row, 1, columns}).data;
  }

  bool Compute(std::byte* scratch, Reference::Progress& at, const Reference::Interrupt& interrupt) override {
    return run_.reference->Row(place_.b, place_.h, place_.first_row, row_, scratch, at, interrupt);
  }

  void Store() override {
    const Problem& problem = *run_.problem;
    bool finite = true;
    if (problem.d_out > 0) {
      finite = std::all_of(output_.begin(), output_.end(), [](double value) { return std::isfinite(value); });
      const std::int64_t row = (place_.b * problem.q_rows + place_.first_row) * problem.q_heads + place_.h;
      std::copy(output_.begin(), output_.end(), run_.reference_heads.data() + row * problem.d_v);
    } else {
      finite = StoreDoubles(problem.output_dtype, output_.data(), problem.d_v,
                            Open(OutputKind::kOutput, problem.output_dtype, problem.d_v));
    }
    run_.nonfinite_rows += !finite;
    if (problem.Wants(OutputKind::kLse))
      StoreDoubles(DType::kFloat64, &lse_, 1, Open(OutputKind::kLse, DType::kFloat64, 1));
    blocks_.Close();
  }

  const Place place_;
  OpenBlocks blocks_;
  std::vector<double> output_;
  double lse_ = 0;
  ReferenceRow row_;
};

// [Hq * d_v] of one token times W_O in float64; rows beyond q_len are 0.
class ReferenceProjectOutUnit final : public ReferenceUnit {
 public:
  ReferenceProjectOutUnit(WorkerContext& context, struct Run& run, std::int64_t token)
      : ReferenceUnit(context, run), token_(token), out_(static_cast<std::size_t>(run.problem->d_out)) {}

 private:
  bool Compute(std::byte* scratch, Reference::Progress& at, const Reference::Interrupt& interrupt) override {
    const Problem& problem = *run_.problem;
    const Place place = PlaceOf(token_, 1, problem.q_rows, 1);
    if (place.first_row >= problem.q_len[static_cast<std::size_t>(place.b)]) return true;
    const double* const heads = run_.reference_heads.data() + token_ * problem.q_heads * problem.d_v;
    return run_.reference->ProjectOut(heads, out_.data(), scratch, at, interrupt);
  }

  void Store() override {
    const Problem& problem = *run_.problem;
    const Place place = PlaceOf(token_, 1, problem.q_rows, 1);
    OpenBlocks blocks(run_.sink);
    const RowSpan span =
        blocks.Open({OutputKind::kOutput, problem.output_dtype, place.b, 0, place.first_row, 1, problem.d_out});
    StoreDoubles(problem.output_dtype, out_.data(), problem.d_out, span.data);
    blocks.Close();
  }

  const std::int64_t token_;
  std::vector<double> out_;
};

// Float64 loops run about sixteen times slower than tiles, so their items count for that much more.
constexpr std::int64_t kReferenceCost = 16;

}  // namespace

void AddReference(Run* run, const ForExecutor& take) {
  const Problem& problem = *run->problem;
  run->reference = std::make_unique<Reference>(problem);
  if (problem.d_out > 0) {
    run->reference_heads = AlignedBuffer<double>(problem.batch * problem.q_rows * problem.q_heads * problem.d_v);
  }
  const std::int64_t d_model = problem.projection.has_value() ? problem.projection->d_model : 1;
  const std::int64_t heads_width = problem.q_heads * problem.d_k + problem.kv_heads * (problem.d_k + problem.d_v);
  take(run->reference->prepare_units(), kReferenceCost * d_model * heads_width, Sink::kUntouched,
       [run](std::int64_t item, WorkerContext& context) { return Begin<ReferencePrepareUnit>(context, *run, item); });
  AddProjectedOutputs(run, take);
  take(problem.batch * problem.q_heads * problem.q_rows,
       kReferenceCost * (problem.kv_rows * (problem.d_k + problem.d_v) + 64), Sink::kWritten,
       [run](std::int64_t item, WorkerContext& context) {
         return Begin<ReferenceRowUnit>(context, *run, PlaceOf(item, run->problem->q_heads, run->problem->q_rows, 1));
       });
  if (problem.d_out == 0) return;
  take(
      problem.batch * problem.q_rows, kReferenceCost * problem.q_heads * problem.d_v * problem.d_out, Sink::kWritten,
      [run](std::int64_t item, WorkerContext& context) { return Begin<ReferenceProjectOutUnit>(context, *run, item); });
}

}  // namespace attnd
