// Problems that start while q, k, v or x still come: nothing is read before it is there, rows leave as soon as what
// they need came, and the bytes are those of a problem that was whole.
#include "core/arrival.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "core/attention.h"
#include "core/tiling.h"
#include "tests/core/inputs.h"
#include "tests/core/random_problem.h"

namespace attnd {
namespace {

// The same problem with q, k, v and x in memory of their own, where every byte says NaN until it comes.
class Coming {
 public:
  explicit Coming(ProblemInputs inputs) : inputs_(std::move(inputs)) {
    const std::pair<std::optional<InputTensor>*, std::atomic<std::int64_t>*> large[] = {
        {&inputs_.k, &arrived.k}, {&inputs_.v, &arrived.v}, {&inputs_.q, &arrived.q}, {&inputs_.x, &arrived.x}};
    for (const auto& [tensor, came] : large) {
      if (!tensor->has_value()) continue;
      std::int64_t bytes = ElementBytes((*tensor)->dtype);
      for (const std::int64_t size : (*tensor)->shape) bytes *= size;
      parts_.push_back(
          {(*tensor)->data, std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{0xff}), came});
      (*tensor)->data = parts_.back().target.data();
    }
    problem = std::make_shared<const Problem>(Made(inputs_));
  }

  struct Part {
    const std::byte* source;
    std::vector<std::byte> target;
    std::atomic<std::int64_t>* came;
    std::int64_t missing() const { return static_cast<std::int64_t>(target.size()) - *came; }
    void Come(std::int64_t bytes) {
      std::memcpy(target.data() + *came, source + *came, static_cast<std::size_t>(bytes));
      came->store(*came + bytes, std::memory_order_release);
    }
  };
  // In the order k, v, q or x.
  std::vector<Part>& parts() { return parts_; }

  Arrived arrived;
  std::shared_ptr<const Problem> problem;

 private:
  ProblemInputs inputs_;
  std::vector<Part> parts_;
};

// Dense tensors, and how many rows of the output are closed.
class CountingSink : public RowSink {
 public:
  explicit CountingSink(const Problem& problem)
      : tensors(kOutputKindCount), dense_(problem, [this](OutputKind kind, std::int64_t bytes) {
          auto& tensor = tensors[static_cast<std::size_t>(kind)];
          tensor.resize(static_cast<std::size_t>(bytes));
          return tensor.data();
        }) {}
  RowSpan Open(const RowBlock& block) override { return dense_.Open(block); }
  void Close(const RowBlock& block, RowSpan) override {
    if (block.kind == OutputKind::kOutput) rows_closed += block.rows;
  }
  void Drop(const RowBlock&, RowSpan) override {}

  std::vector<std::vector<std::byte>> tensors;
  std::atomic<std::int64_t> rows_closed{0};

 private:
  DenseSink dense_;
};

// A run whose tensors come while it runs.
struct Running {
  Running(Coming& coming, Executor& executor_used) : executor(executor_used), sink(*coming.problem) {
    job = StartAttention(
        coming.problem, sink, executor, token, [this](const AttentionReport& report) { done.set_value(report); }, {},
        &coming.arrived);
  }
  AttentionReport Wait() { return done.get_future().get(); }
  void AwaitRows(std::int64_t rows) const {
    while (sink.rows_closed < rows) std::this_thread::yield();
  }

  Executor& executor;
  CountingSink sink;
  std::shared_ptr<CancelToken> token = std::make_shared<CancelToken>();
  std::promise<AttentionReport> done;
  std::shared_ptr<Job> job;
};

TEST(ArrivalTest, BytesAreThoseOfAWholeProblemHoweverItsTensorsCome) {
  Executor executor(2);
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 generator(seed);
    const Pick pick = PickFrom(generator);
    TensorStore store;
    const ProblemInputs inputs = RandomProblem(pick, RandomShape(pick), store);
    if (inputs.options.reference) continue;
    const DenseAnswer whole = Attend(Made(inputs), executor).value();
    Coming coming(inputs);
    Running running(coming, executor);
    std::vector<Coming::Part>& parts = coming.parts();
    const bool in_order = seed % 2 == 0;
    while (true) {
      std::vector<Coming::Part*> open;
      for (Coming::Part& part : parts) {
        if (part.missing() > 0) open.push_back(&part);
      }
      if (open.empty()) break;
      Coming::Part& part = *open[in_order ? 0 : static_cast<std::size_t>(pick(0, static_cast<int>(open.size()) - 1))];
      part.Come(pick(1, std::min<std::int64_t>(part.missing(), 1 << pick(2, 16))));
      executor.Wake(running.job);
    }
    executor.Wake(running.job);
    const AttentionReport report = running.Wait();
    ASSERT_TRUE(report.status.ok()) << report.status;
    EXPECT_EQ(report.nonfinite_rows, whole.nonfinite_rows) << "seed " << seed;
    EXPECT_EQ(running.sink.tensors, whole.tensors) << "seed " << seed;
  }
}

ProblemInputs FourHeads(TensorStore& store) {
  std::mt19937 generator(7);
  return RandomInputs({1, 4, 2, 512, 700, 64, 64}, store, generator);
}

TEST(ArrivalTest, RowsLeaveBeforeTheLastQueryComes) {
  Executor executor(2);
  TensorStore store;
  Coming coming(FourHeads(store));
  Running running(coming, executor);
  std::vector<Coming::Part>& parts = coming.parts();
  parts[0].Come(parts[0].missing());
  parts[1].Come(parts[1].missing());
  executor.Wake(running.job);
  EXPECT_EQ(running.sink.rows_closed, 0);
  // One head and a half of the four, then all but the last byte.
  parts[2].Come(768 * 64 * 4);
  executor.Wake(running.job);
  running.AwaitRows(768);
  parts[2].Come(parts[2].missing() - 1);
  executor.Wake(running.job);
  const std::int64_t tile = QueryTileRows(64, 64, false);
  running.AwaitRows(2048 - tile);
  EXPECT_EQ(running.sink.rows_closed, 2048 - tile);
  parts[2].Come(1);
  executor.Wake(running.job);
  EXPECT_TRUE(running.Wait().status.ok());
  EXPECT_EQ(running.sink.rows_closed, 2048);
}

TEST(ArrivalTest, AHeadWaitsForItsOwnKeysOnly) {
  Executor executor(2);
  TensorStore store;
  Coming coming(FourHeads(store));
  const Problem& problem = *coming.problem;
  std::vector<Coming::Part>& parts = coming.parts();
  const std::int64_t head_bytes = 700 * 64 * 4, tiles = CeilDiv(512, 128);
  EXPECT_EQ(KeyTilesReady(problem, 3, false, coming.arrived), 0);
  parts[0].Come(256 * 64 * 4 - 1);
  EXPECT_EQ(KeyTilesReady(problem, 3, false, coming.arrived), 0);
  parts[0].Come(1);
  EXPECT_EQ(KeyTilesReady(problem, 3, false, coming.arrived), 1);
  EXPECT_EQ(KeyTilesReady(problem, 3, true, coming.arrived), 0);
  parts[0].Come(head_bytes - 256 * 64 * 4);
  EXPECT_EQ(KeyTilesReady(problem, 3, false, coming.arrived), 3);
  parts[2].Come(parts[2].missing());
  EXPECT_EQ(QueryTilesReady(problem, 128, false, coming.arrived), 0);
  parts[1].Come(head_bytes);
  EXPECT_EQ(QueryTilesReady(problem, 128, false, coming.arrived), 2 * tiles);  // the two heads of the first group
  EXPECT_EQ(SequencesReady(problem, coming.arrived), 0);
  parts[0].Come(head_bytes);
  parts[1].Come(head_bytes);
  EXPECT_EQ(QueryTilesReady(problem, 128, false, coming.arrived), 4 * tiles);
  EXPECT_EQ(SequencesReady(problem, coming.arrived), 1);
}

TEST(ArrivalTest, AJobThatWaitsForTensorsCanBeCancelled) {
  Executor executor(2);
  TensorStore store;
  Coming coming(FourHeads(store));
  Running running(coming, executor);
  coming.parts()[0].Come(1000);
  executor.Wake(running.job);
  running.token->Cancel(absl::CancelledError("enough"));
  executor.Wake(running.job);
  const AttentionReport report = running.Wait();
  EXPECT_EQ(report.status, absl::CancelledError("enough"));
  EXPECT_EQ(report.undone, 1);
}

}  // namespace
}  // namespace attnd
