// A large problem of every kind of work beside small ones of another client, on one thread: it gives way in the middle
// of its units, its bytes stay, and it ends when it is cancelled there. No test asserts a time: slices are counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/attention.h"
#include "tests/core/inputs.h"
#include "tests/core/random_problem.h"

namespace attnd {
namespace {

// Which units of the problem are of the kind: its first ones, or its last ones, which may hold rows of the answer open
// before they are through.
enum class Units { kFirst, kLast, kLastHoldingBlocks };
// A kind of work whose units take several slices each on any machine.
struct Kind {
  const char* name;
  ProblemInputs (*make)(TensorStore& store);
  Units units;
};

InputTensor Noise(TensorStore& store, std::vector<std::int64_t> shape, DType dtype = DType::kFloat32) {
  std::vector<double> values(static_cast<std::size_t>(CheckedProduct(shape).value()));
  std::uint32_t state = 1;
  for (double& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<double>(state >> 8) / (1 << 25) - 0.25;
  }
  return store.Floats(std::move(shape), values, dtype);
}

ProblemInputs Attending(TensorStore& store, const Shape& s, std::vector<OutputKind> outputs = {}) {
  ProblemInputs inputs;
  inputs.q = Noise(store, {s.batch, s.q_heads, s.q_rows, s.d_k});
  inputs.k = Noise(store, {s.batch, s.kv_heads, s.kv_rows, s.d_k});
  inputs.v = Noise(store, {s.batch, s.kv_heads, s.kv_rows, s.d_v});
  inputs.outputs = std::move(outputs);
  return inputs;
}

// x of `rows` tokens; w_o where d_out > 0.
ProblemInputs Projecting(TensorStore& store, std::int64_t rows, std::int64_t d_model, std::int64_t q_heads,
                         std::int64_t d, std::int64_t d_out, DType dtype = DType::kFloat32, bool transposed = false) {
  ProblemInputs inputs;
  inputs.x = Noise(store, {1, rows, d_model}, dtype);
  ProjectionInputs& projection = inputs.projection.emplace();
  projection.q_heads = q_heads;
  projection.kv_heads = 1;
  projection.weights_transposed = transposed;
  const auto matrix = [&](std::int64_t in, std::int64_t out) {
    return Noise(store, transposed ? std::vector{out, in} : std::vector{in, out}, dtype);
  };
  projection.w_q = matrix(d_model, q_heads * d);
  projection.w_k = matrix(d_model, d);
  projection.w_v = matrix(d_model, d);
  projection.b_q = Noise(store, {q_heads * d});
  if (d_out == 0) return inputs;
  projection.w_o = matrix(q_heads * d, d_out);
  projection.b_o = Noise(store, {d_out});
  return inputs;
}

// Key 5 is excluded and its value is NaN, so every row is computed again.
ProblemInputs WithNanInAnExcludedValue(TensorStore& store, ProblemInputs inputs) {
  const std::int64_t keys = inputs.k->shape[2], d_v = inputs.v->shape[3];
  std::vector<int> mask(static_cast<std::size_t>(keys), 1);
  mask[5] = 0;
  inputs.options.mask = store.Bools({keys}, mask);
  std::fill_n(const_cast<float*>(reinterpret_cast<const float*>(inputs.v->data)) + 5 * d_v, d_v, NAN);
  return inputs;
}

ProblemInputs InReferenceMode(ProblemInputs inputs) {
  inputs.options.reference = true;
  return inputs;
}

const std::vector<OutputKind>& EveryOutput() {
  static const std::vector<OutputKind> all = {OutputKind::kWeights,      OutputKind::kLse,
                                              OutputKind::kScoresDot,    OutputKind::kScoresScaled,
                                              OutputKind::kScoresCapped, OutputKind::kScoresBiased};
  return all;
}

const Kind kKinds[] = {
    {"QueryTile",
     [](TensorStore& store) {
       return Attending(store, {1, 1, 1, 128, 65536, 64, 64}, {OutputKind::kLse});
     },
     Units::kLast},
    {"RangesOfManyHeads",
     [](TensorStore& store) {
       return Attending(store, {1, 256, 1, 4, 4096, 128, 128}, {OutputKind::kLse});
     },
     Units::kFirst},
    {"RowsThatSeeNothing",
     [](TensorStore& store) {
       ProblemInputs inputs = Attending(store, {1, 1, 1, 128, 65536, 8, 8}, {OutputKind::kLse});
       inputs.options.bias = store.Filled({65536}, -INFINITY, DType::kFloat32);
       return inputs;
     },
     Units::kLast},
    {"RowsComputedAgain",
     [](TensorStore& store) {
       return WithNanInAnExcludedValue(store, Attending(store, {1, 1, 1, 8, 131072, 16, 16}, {OutputKind::kLse}));
     },
     Units::kLast},
    {"RowsComputedAgainInRanges",
     [](TensorStore& store) {
       return WithNanInAnExcludedValue(store, Attending(store, {1, 1, 1, 2, 262144, 16, 16}, {OutputKind::kLse}));
     },
     Units::kLast},
    {"Weights",
     [](TensorStore& store) {
       return Attending(store, {1, 1, 1, 6, 131072, 64, 16}, EveryOutput());
     },
     Units::kLastHoldingBlocks},
    {"WeightsOfRowsThatSeeNothing",
     [](TensorStore& store) {
       ProblemInputs inputs = Attending(store, {1, 1, 1, 6, 131072, 64, 16}, EveryOutput());
       inputs.options.mask = store.Bools({131072}, std::vector<int>(131072, 0));
       return inputs;
     },
     Units::kLastHoldingBlocks},
    {"ProjectionOfWideX", [](TensorStore& store) { return Projecting(store, 128, 16384, 1, 256, 0); }, Units::kFirst},
    {"ProjectionByTransposedBfloat16",
     [](TensorStore& store) { return Projecting(store, 100, 16384, 1, 200, 0, DType::kBFloat16, /*transposed=*/true); },
     Units::kFirst},
    {"SharedProjection",
     [](TensorStore& store) { return Projecting(store, 32, 32768, 1, 200, 0, DType::kBFloat16, /*transposed=*/true); },
     Units::kFirst},
    {"ProjectionToWideOutput", [](TensorStore& store) { return Projecting(store, 128, 16, 8, 128, 8200); },
     Units::kLast},
    {"ReferenceRow",
     [](TensorStore& store) {
       return InReferenceMode(Attending(store, {1, 1, 1, 2, 100000, 8, 8}, EveryOutput()));
     },
     Units::kLastHoldingBlocks},
    {"ReferenceProjection", [](TensorStore& store) { return InReferenceMode(Projecting(store, 2, 4096, 8, 128, 0)); },
     Units::kFirst},
    {"ReferenceProjectionToOutput",
     [](TensorStore& store) { return InReferenceMode(Projecting(store, 2, 4, 8, 128, 8192)); }, Units::kLast},
};

// A problem, an answer in memory of its own, and what is done to it. On one thread nothing is done at the same time.
class Started final : public RowSink {
 public:
  explicit Started(const ProblemInputs& inputs) : problem_(Problem::Create(inputs, {}).value()) {}

  void Start(Executor& executor, JobClass job_class, std::function<void(const AttentionReport&)> done) {
    job_ = StartAttention(std::shared_ptr<const Problem>(std::shared_ptr<void>(), &problem_), *this, executor, cancel_,
                          std::move(done), std::move(job_class));
  }
  // Alone, as nobody waits.
  AttentionReport Finish(Executor& executor) {
    std::promise<AttentionReport> done;
    Start(executor, JobClass{"alone"}, [&](const AttentionReport& report) { done.set_value(report); });
    return done.get_future().get();
  }
  void Cancel() { cancel_->Cancel(absl::CancelledError("enough")); }

  RowSpan Open(const RowBlock& block) override { return ++opened_, dense_.Open(block); }
  void Close(const RowBlock&, RowSpan) override { ++closed_; }
  void Drop(const RowBlock&, RowSpan) override { ++dropped_; }
  // Asked before each unit that writes, once at least.
  bool HasRoom() override {
    opened_when_asked_ = opened_;
    if (opened_ < hold_at_) return true;
    if (!std::exchange(is_held_, true)) held_.set_value();
    return false;
  }
  // Blocks that the units before the last one opened, of a run that is over.
  int opened_before_last() const { return opened_when_asked_; }
  // Before Start: it will be held back when so many are opened, until GoOn.
  void HoldAt(int opened) { hold_at_ = opened; }
  void WaitUntilHeld() { held_.get_future().wait(); }
  void GoOn(Executor& executor) {
    hold_at_ = kNever;
    executor.Wake(job_);
  }

  int open_now() const { return opened_ - closed_ - dropped_; }
  int closed() const { return closed_; }
  int dropped() const { return dropped_; }
  int calls() const { return opened_ + closed_ + dropped_; }
  const std::map<OutputKind, std::vector<std::byte>>& outputs() const { return outputs_; }

 private:
  Problem problem_;
  std::shared_ptr<CancelToken> cancel_ = std::make_shared<CancelToken>();
  std::shared_ptr<Job> job_;
  std::map<OutputKind, std::vector<std::byte>> outputs_;
  DenseSink dense_{problem_, [this](OutputKind kind, std::int64_t bytes) {
                     outputs_[kind].resize(static_cast<std::size_t>(bytes));
                     return outputs_[kind].data();
                   }};
  int opened_ = 0, closed_ = 0, dropped_ = 0;
  static constexpr int kNever = 1 << 30;
  std::atomic<int> hold_at_{kNever};
  int opened_when_asked_ = 0;
  bool is_held_ = false;
  std::promise<void> held_;
};

// A job that keeps the only worker for at least `lead` and then, in a second unit, until it is told to go. Whatever is
// submitted in that second unit begins even, and first by name, if it used less than `lead` before.
class Gate {
 public:
  Gate(Executor& executor, absl::Duration lead) {
    Phase phase;
    phase.units = 2;
    phase.run = [this, lead](std::int64_t unit, WorkerContext&) {
      const absl::Time begin = absl::Now();
      while (unit == 0 && absl::Now() - begin < lead) std::this_thread::yield();
      if (unit == 1) {
        stands_.set_value();
        open_.get_future().wait();
      }
      return nullptr;
    };
    executor.Submit(std::make_shared<Job>(
        std::vector<Phase>{phase}, std::make_shared<CancelToken>(), [](const JobReport&) {}, JobClass{"gate"}));
    stands_.get_future().wait();
  }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> stands_, open_;
};

class GivingWayTest : public testing::TestWithParam<Kind> {
 protected:
  ProblemInputs Large() { return GetParam().make(store_); }
  ProblemInputs Small() { return Attending(store_, {1, 1, 1, 64, 512, 32, 32}); }

  TensorStore store_;
};

TEST_P(GivingWayTest, NoByteChangesWhenSomebodyAlwaysWaits) {
  const ProblemInputs inputs = Large();
  Started alone(inputs), large(inputs), small(Small());
  bool large_done = false;
  AttentionReport report;
  std::promise<void> last_small;
  Executor one(1);
  const AttentionReport undisturbed = alone.Finish(one);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;

  Gate gate(one, absl::ZeroDuration());
  large.Start(one, JobClass{"large"}, [&](const AttentionReport& result) {
    report = result;
    large_done = true;
  });
  const std::function<void(const AttentionReport&)> again = [&](const AttentionReport& result) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    if (large_done) return last_small.set_value();
    small.Start(one, JobClass{"small"}, again);
  };
  small.Start(one, JobClass{"small"}, again);
  gate.Open();
  last_small.get_future().wait();
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_EQ(undisturbed.gave_way, 0);
  EXPECT_GT(report.gave_way, 0);
  EXPECT_EQ(report.nonfinite_rows, undisturbed.nonfinite_rows);
  EXPECT_TRUE(large.outputs() == alone.outputs());
  EXPECT_EQ(large.open_now(), 0);
  EXPECT_EQ(large.dropped(), 0);
}

// A small one comes when a unit of the kind begins. It is answered after one slice, and then the large one is
// cancelled.
TEST_P(GivingWayTest, ASmallOneIsAnsweredAfterOneSliceAndCancellingEndsTheRest) {
  const ProblemInputs inputs = Large();
  const bool holds_blocks = GetParam().units == Units::kLastHoldingBlocks;
  Started alone(inputs), large(inputs), small(Small()), next(Small());
  AttentionReport report;
  int closed = 0, open = 0;
  std::promise<void> small_done, large_done;
  Executor one(1);
  const AttentionReport undisturbed = alone.Finish(one);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;

  const auto start_large = [&] {
    large.Start(one, JobClass{"large"}, [&](const AttentionReport& result) {
      report = result;
      large_done.set_value();
    });
  };
  std::optional<Gate> gate;
  if (GetParam().units == Units::kFirst) {
    gate.emplace(one, absl::ZeroDuration());
    start_large();
  } else {
    large.HoldAt(alone.opened_before_last());
    const absl::Time begin = absl::Now();
    start_large();
    large.WaitUntilHeld();
    gate.emplace(one, absl::Now() - begin);
    large.GoOn(one);
  }
  // Its weight makes all it uses nothing: it is due as soon as the large one used anything.
  small.Start(one, JobClass{"small", std::int64_t{1} << 40}, [&](const AttentionReport& result) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    closed = large.closed();
    open = large.open_now();
    large.Cancel();
    small_done.set_value();
  });
  gate->Open();
  small_done.get_future().wait();
  large_done.get_future().wait();
  EXPECT_EQ(report.status, absl::CancelledError("enough"));
  if (GetParam().units == Units::kFirst) {
    EXPECT_EQ(report.slices, 1);
  }
  EXPECT_LT(closed, alone.closed());
  EXPECT_EQ(open > 0, holds_blocks);
  // What was open is dropped, and the sink is left alone.
  EXPECT_EQ(large.closed(), closed);
  EXPECT_EQ(large.dropped(), open);
  EXPECT_EQ(large.open_now(), 0);
  const int calls = large.calls();
  EXPECT_TRUE(next.Finish(one).status.ok());
  EXPECT_EQ(large.calls(), calls);
}

INSTANTIATE_TEST_SUITE_P(EveryKind, GivingWayTest, testing::ValuesIn(kKinds),
                         [](const testing::TestParamInfo<Kind>& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace attnd
