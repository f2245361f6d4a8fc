// Problems that meet the same weights: each has the bytes that it has alone, whoever computed them, whoever is stopped.
#include "core/projection_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/attention.h"
#include "tests/core/inputs.h"
#include "tests/core/random_problem.h"

namespace attnd {
namespace {

// Weights that many problems name.
struct Weights {
  const char* name;
  std::int64_t d_model, q_heads, kv_heads, d_k, d_v;
  std::int64_t d_out = 0;  // 0: without W_O
  DType dtype = DType::kFloat32;
  bool transposed = false;
};

const Weights kWeights[] = {
    {"OneBlockEach", 600, 2, 1, 100, 56},
    {"TailsOfColumnsAndDepth", 300, 4, 2, 80, 68, 270},
    {"Transposed", 520, 2, 2, 130, 32, 257, DType::kFloat32, true},
    {"Bfloat16", 512, 4, 1, 64, 64, 512, DType::kBFloat16},
    {"TransposedFloat16", 270, 3, 3, 90, 10, 5, DType::kFloat16, true},
};

ProjectionInputs MakeWeights(const Weights& w, TensorStore& store, std::mt19937& generator) {
  const auto tensor = [&](std::vector<std::int64_t> shape, DType dtype) {
    const std::int64_t count = CheckedProduct(shape).value();
    return store.Floats(std::move(shape), Normal(count, generator, 0.1), dtype);
  };
  const auto matrix = [&](std::int64_t in, std::int64_t out) {
    return tensor(w.transposed ? std::vector{out, in} : std::vector{in, out}, w.dtype);
  };
  ProjectionInputs projection;
  projection.q_heads = w.q_heads;
  projection.kv_heads = w.kv_heads;
  projection.weights_transposed = w.transposed;
  projection.w_q = matrix(w.d_model, w.q_heads * w.d_k);
  projection.w_k = matrix(w.d_model, w.kv_heads * w.d_k);
  projection.w_v = matrix(w.d_model, w.kv_heads * w.d_v);
  projection.b_q = tensor({w.q_heads * w.d_k}, DType::kFloat32);
  projection.b_v = tensor({w.kv_heads * w.d_v}, w.dtype);
  if (w.d_out == 0) return projection;
  projection.w_o = matrix(w.q_heads * w.d_v, w.d_out);
  projection.b_o = tensor({w.d_out}, DType::kFloat16);
  return projection;
}

// Rows of one caller.
ProblemInputs MakeProblem(const ProjectionInputs& weights, std::int64_t d_model, std::int64_t batch, std::int64_t rows,
                          DType dtype, TensorStore& store, std::mt19937& generator) {
  ProblemInputs inputs;
  inputs.x = store.Floats({batch, rows, d_model}, Normal(batch * rows * d_model, generator), dtype);
  inputs.projection = weights;
  return inputs;
}

// 1 to 40 rows, some of them more than share, of all types.
std::vector<ProblemInputs> MakeProblems(const Weights& w, TensorStore& store, std::mt19937& generator) {
  const ProjectionInputs weights = MakeWeights(w, store, generator);
  std::vector<ProblemInputs> problems;
  for (const auto& [batch, rows, dtype] : {std::tuple{1, 1, DType::kFloat32},
                                           {1, 1, DType::kFloat16},
                                           {2, 3, DType::kFloat32},
                                           {1, 8, DType::kBFloat16},
                                           {1, 32, DType::kFloat32},
                                           {3, 5, DType::kFloat16},
                                           {1, 40, DType::kFloat32},
                                           {5, 1, DType::kFloat32},
                                           {1, 2, DType::kFloat32}}) {
    problems.push_back(MakeProblem(weights, w.d_model, batch, rows, dtype, store, generator));
    problems.back().outputs = {OutputKind::kProjectedQ, OutputKind::kProjectedK, OutputKind::kProjectedV};
  }
  problems[2].options.causal = true;
  problems[5].options.q_len = {5, 0, 2};
  return problems;
}

// One problem on its way, with the memory of its answer.
class Started {
 public:
  explicit Started(const ProblemInputs& inputs) : problem_(Made(inputs)) {}
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;

  void Start(Executor& executor, JobClass job_class = {"caller"}) {
    job_ = StartAttention(
        std::shared_ptr<const Problem>(std::shared_ptr<void>(), &problem_), sink_, executor, cancel_,
        [this](const AttentionReport& report) { done_.set_value(report); }, std::move(job_class));
  }
  void Cancel(Executor& executor) {
    cancel_->Cancel(absl::CancelledError("enough"));
    executor.Wake(job_);
  }
  AttentionReport Wait() { return done_.get_future().get(); }
  const std::vector<std::vector<std::byte>>& tensors() const { return tensors_; }

 private:
  Problem problem_;
  std::vector<std::vector<std::byte>> tensors_ = std::vector<std::vector<std::byte>>(kOutputKindCount);
  DenseSink sink_{problem_, [this](OutputKind kind, std::int64_t bytes) {
                    auto& tensor = tensors_[static_cast<std::size_t>(kind)];
                    tensor.resize(static_cast<std::size_t>(bytes));
                    return tensor.data();
                  }};
  std::shared_ptr<CancelToken> cancel_ = std::make_shared<CancelToken>();
  std::shared_ptr<Job> job_;
  std::promise<AttentionReport> done_;
};

// Keeps every worker until it is opened, so that what is submitted meanwhile waits together.
class Gate {
 public:
  explicit Gate(Executor& executor) : stand_(static_cast<std::size_t>(executor.threads())) {
    Phase phase;
    phase.units = executor.threads();
    phase.run = [this, opened = open_.get_future().share()](std::int64_t unit, WorkerContext&) {
      stand_[static_cast<std::size_t>(unit)].set_value();
      opened.wait();
      return nullptr;
    };
    executor.Submit(std::make_shared<Job>(
        std::vector<Phase>{phase}, std::make_shared<CancelToken>(), [](const JobReport&) {}, JobClass{"gate"}));
    for (std::promise<void>& worker : stand_) worker.get_future().wait();
  }
  ~Gate() { open_.set_value(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

 private:
  std::vector<std::promise<void>> stand_;
  std::promise<void> open_;
};

std::vector<std::vector<std::byte>> Alone(const ProblemInputs& inputs, Executor& executor) {
  Started started(inputs);
  started.Start(executor);
  const AttentionReport report = started.Wait();
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_EQ(report.weight_blocks_shared, 0);
  return started.tensors();
}

class ProjectionShareTest : public testing::TestWithParam<Weights> {};

TEST_P(ProjectionShareTest, TogetherIsTheSameBytesAsAlone) {
  TensorStore store;
  std::mt19937 generator(11);
  const std::vector<ProblemInputs> problems = MakeProblems(GetParam(), store, generator);
  for (const int threads : {1, 2, 5}) {
    Executor executor(threads);
    std::vector<std::vector<std::vector<std::byte>>> alone;
    for (const ProblemInputs& inputs : problems) alone.push_back(Alone(inputs, executor));
    std::deque<Started> together;
    {
      const Gate gate(executor);
      for (const ProblemInputs& inputs : problems) together.emplace_back(inputs).Start(executor);
    }
    std::int64_t shared = 0;
    for (std::size_t n = 0; n < together.size(); ++n) {
      const AttentionReport report = together[n].Wait();
      EXPECT_TRUE(report.status.ok()) << report.status;
      EXPECT_EQ(together[n].tensors(), alone[n]) << "problem " << n << " of " << threads << " threads";
      if (n == 6) {
        EXPECT_EQ(report.weight_blocks_shared, 0);  // too many rows
      }
      shared += report.weight_blocks_shared;
    }
    EXPECT_GT(shared, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(AllWeights, ProjectionShareTest, testing::ValuesIn(kWeights),
                         [](const testing::TestParamInfo<Weights>& weights) {
                           return std::string(weights.param.name);
                         });

// On one worker what waits together goes together: all but what the limit of rows leaves over.
TEST(ProjectionShareTest, AllBlocksOfThoseThatWaitTogetherAreShared) {
  TensorStore store;
  std::mt19937 generator(12);
  const Weights w{"", 300, 4, 2, 80, 68, 270};
  const ProjectionInputs weights = MakeWeights(w, store, generator);
  Executor executor(1);
  std::deque<Started> together;
  {
    const Gate gate(executor);
    for (int n = 0; n < 8; ++n) {
      together.emplace_back(MakeProblem(weights, w.d_model, 1, 8, DType::kFloat32, store, generator)).Start(executor);
    }
  }
  // W_Q has 320 columns, W_K 160, W_V 136 and W_O 270.
  for (Started& started : together) EXPECT_EQ(started.Wait().weight_blocks_shared, 2 + 1 + 1 + 2);
}

TEST(ProjectionShareTest, OnlyTheSameWeightsAreShared) {
  TensorStore store;
  std::mt19937 generator(13);
  const Weights w{"", 300, 4, 2, 80, 68};
  const ProjectionInputs one = MakeWeights(w, store, generator);
  ProjectionInputs other_bias = one, other_heads = one, other_matrix = one;
  other_bias.b_q = MakeWeights(w, store, generator).b_q;
  other_heads.q_heads = 2;
  other_heads.kv_heads = 1;
  other_matrix.w_v = MakeWeights(w, store, generator).w_v;
  Executor executor(1);
  std::deque<Started> together;
  {
    const Gate gate(executor);
    for (const ProjectionInputs& weights : {one, other_bias, other_heads, other_matrix}) {
      together.emplace_back(MakeProblem(weights, w.d_model, 1, 4, DType::kFloat32, store, generator)).Start(executor);
    }
  }
  // Heads are no part of the products.
  EXPECT_EQ(together[0].Wait().weight_blocks_shared, 4);
  EXPECT_EQ(together[1].Wait().weight_blocks_shared, 0);
  EXPECT_EQ(together[2].Wait().weight_blocks_shared, 4);
  EXPECT_EQ(together[3].Wait().weight_blocks_shared, 0);
}

// One that is served before others is not made to carry them, nor carried by them.
TEST(ProjectionShareTest, OnlyProblemsOfOnePriorityShare) {
  TensorStore store;
  std::mt19937 generator(14);
  const Weights w{"", 300, 4, 2, 80, 68, 270};
  const ProjectionInputs weights = MakeWeights(w, store, generator);
  Executor executor(1);
  std::deque<Started> together;
  {
    const Gate gate(executor);
    for (const std::int64_t weight : {1, 4, 16}) {
      together.emplace_back(MakeProblem(weights, w.d_model, 1, 8, DType::kFloat32, store, generator))
          .Start(executor, JobClass{"caller", weight});
    }
  }
  for (Started& started : together) EXPECT_EQ(started.Wait().weight_blocks_shared, 0);
}

TEST(ProjectionShareTest, CallersOfDifferentClientsShare) {
  TensorStore store;
  std::mt19937 generator(15);
  const Weights w{"", 300, 4, 2, 80, 68};
  const ProjectionInputs weights = MakeWeights(w, store, generator);
  Executor executor(1);
  std::deque<Started> together;
  {
    const Gate gate(executor);
    for (const char* client : {"a", "b", "c"}) {
      together.emplace_back(MakeProblem(weights, w.d_model, 1, 8, DType::kFloat32, store, generator))
          .Start(executor, JobClass{client});
    }
  }
  for (Started& started : together) {
    const AttentionReport report = started.Wait();
    EXPECT_EQ(report.weight_blocks_shared, 4);
    EXPECT_GT(report.worked, absl::ZeroDuration());
  }
}

TEST(ProjectionShareTest, OneThatIsStoppedLeavesTheOthersRight) {
  TensorStore store;
  std::mt19937 generator(16);
  const Weights w{"", 16384, 2, 1, 100, 100, 100, DType::kBFloat16, true};
  const ProjectionInputs weights = MakeWeights(w, store, generator);
  std::vector<ProblemInputs> problems;
  for (int n = 0; n < 6; ++n)
    problems.push_back(MakeProblem(weights, w.d_model, 1, 4, DType::kFloat32, store, generator));
  Executor executor(2);
  std::vector<std::vector<std::vector<std::byte>>> alone;
  for (const ProblemInputs& inputs : problems) alone.push_back(Alone(inputs, executor));
  std::uniform_int_distribution<std::size_t> which(0, problems.size() - 1);
  std::int64_t shared = 0, stopped = 0;
  for (int round = 0; round < 30; ++round) {
    const std::size_t cancelled = round < 10 ? 0 : which(generator);  // the first leads
    std::deque<Started> together;
    std::promise<void> over;
    {
      const Gate gate(executor);
      for (const ProblemInputs& inputs : problems) together.emplace_back(inputs).Start(executor);
      // It has its turn when they have had some slices.
      Phase stop;
      stop.units = 1 + round % 4;
      stop.run = [&together, &executor, cancelled, last = stop.units - 1](std::int64_t unit, WorkerContext&) {
        const absl::Time begin = absl::Now();
        while (absl::Now() - begin < absl::Milliseconds(1)) continue;
        if (unit == last) together[cancelled].Cancel(executor);
        return nullptr;
      };
      executor.Submit(std::make_shared<Job>(
          std::vector<Phase>{stop}, std::make_shared<CancelToken>(), [&over](const JobReport&) { over.set_value(); },
          JobClass{"stopper"}));
    }
    over.get_future().wait();
    for (std::size_t n = 0; n < together.size(); ++n) {
      const AttentionReport report = together[n].Wait();
      if (n == cancelled && !report.status.ok()) {
        EXPECT_EQ(report.status, absl::CancelledError("enough"));
        ++stopped;
        continue;
      }
      ASSERT_TRUE(report.status.ok()) << report.status;
      ASSERT_EQ(together[n].tensors(), alone[n]) << "problem " << n << ", round " << round;
      shared += report.weight_blocks_shared;
    }
  }
  EXPECT_GT(shared, 0);
  EXPECT_GT(stopped, 0);
}

// Somebody else always waits, so that units give way in the middle of what they took along.
TEST(ProjectionShareTest, NoByteChangesWhenUnitsGiveWay) {
  TensorStore store;
  std::mt19937 generator(17);
  const Weights w{"", 16384, 2, 1, 100, 100, 100, DType::kBFloat16, true};
  const ProjectionInputs weights = MakeWeights(w, store, generator);
  std::vector<ProblemInputs> problems;
  for (int n = 0; n < 6; ++n)
    problems.push_back(MakeProblem(weights, w.d_model, 1, n + 3, DType::kFloat32, store, generator));
  Executor executor(2);
  std::vector<std::vector<std::vector<std::byte>>> alone;
  for (const ProblemInputs& inputs : problems) alone.push_back(Alone(inputs, executor));
  std::atomic<bool> enough{false};
  std::thread others([&] {
    while (!enough) {
      std::promise<void> done;
      Phase phase;
      phase.units = 4;
      phase.run = [](std::int64_t, WorkerContext&) { return nullptr; };
      executor.Submit(std::make_shared<Job>(
          std::vector<Phase>{phase}, std::make_shared<CancelToken>(), [&done](const JobReport&) { done.set_value(); },
          JobClass{"others"}));
      done.get_future().wait();
    }
  });
  std::int64_t shared = 0, slices = 0;
  for (int round = 0; round < 5; ++round) {
    std::deque<Started> together;
    int client = 0;
    for (const ProblemInputs& inputs : problems)
      together.emplace_back(inputs).Start(executor, JobClass{std::to_string(++client)});
    for (std::size_t n = 0; n < together.size(); ++n) {
      const AttentionReport report = together[n].Wait();
      EXPECT_TRUE(report.status.ok()) << report.status;
      EXPECT_EQ(together[n].tensors(), alone[n]) << "problem " << n << ", round " << round;
      shared += report.weight_blocks_shared;
      slices += report.slices;
    }
  }
  enough = true;
  others.join();
  EXPECT_GT(shared, 0);
  EXPECT_GT(slices, 6 * 5);
}

// Problems of one block, driven by hand. Their jobs wait for a room that never comes.
class SharedByHandTest : public testing::Test {
 protected:
  static constexpr std::int64_t kIn = 600, kOut = 200;
  struct Caller {
    std::vector<float> x, out;
    CancelToken cancel;
    std::shared_ptr<Job> job;
    std::optional<SharedRows> rows;
    std::promise<absl::Status> done;
    std::function<bool()> is_there;  // null: from the beginning
    std::int64_t depth = 0;          // where it stands when it enters
  };

  void SetUp() override {
    weight_ = Floats(kIn * kOut);
    linear_.weight = reinterpret_cast<const std::byte*>(weight_.data());
    linear_.in = kIn;
    linear_.out = kOut;
    for (Caller* caller : {&first_, &second_, &third_}) {
      caller->x = Floats(3 * kIn);
      caller->out.resize(3 * kOut);
    }
  }
  void Enter(Caller& caller, std::shared_ptr<CancelToken> token = std::make_shared<CancelToken>()) {
    ProjectionRows rows = Rows(caller);
    while (rows.depth < caller.depth) {
      ProjectionRows* const alone[] = {&rows};
      ProjectBlock(alone, scratch_.Reserve(ProjectionScratchBytes()));
    }
    caller.rows.emplace(rows, std::vector{SharedRows::Product{&linear_, caller.out.data()}}, caller.cancel,
                        caller.is_there);
    Phase phase;
    phase.units = 1;
    phase.ready = [] { return std::int64_t{0}; };
    caller.job = std::make_shared<Job>(std::vector<Phase>{phase}, std::move(token), [&caller](const JobReport& report) {
      caller.rows->Leave();
      caller.done.set_value(report.status);
    });
    caller.rows->Enter(executor_, caller.job, 4);
    executor_.Submit(caller.job);
  }
  ProjectionRows Rows(Caller& caller) {
    return {&linear_,
            DType::kFloat32,
            reinterpret_cast<const std::byte*>(caller.x.data()),
            kIn,
            3,
            caller.out.data(),
            kOut,
            /*column=*/0,
            /*end_column=*/kOut};
  }
  std::vector<float> Alone(Caller& caller) {
    std::vector<float> out(3 * kOut);
    ProjectionRows rows = Rows(caller);
    rows.out = out.data();
    EXPECT_TRUE(attnd::Project(rows, scratch_.Reserve(ProjectionScratchBytes()), CancelToken(), WorkerContext()));
    return out;
  }
  // What a worker would do with the block.
  bool Run(Caller& caller, const WorkerContext& context = WorkerContext()) {
    const std::optional<std::size_t> block = caller.rows->Take();
    EXPECT_TRUE(block.has_value());
    return block.has_value() && GoOn(caller, context);
  }
  bool GoOn(Caller& caller, const WorkerContext& context = WorkerContext()) {
    return caller.rows->Project(0, scratch_.Reserve(ProjectionScratchBytes()), context);
  }
  static std::vector<float> Floats(std::int64_t count) {
    static std::mt19937 generator(18);
    const std::vector<double> values = Normal(count, generator);
    return {values.begin(), values.end()};
  }

  std::vector<float> weight_;
  Linear linear_;
  Caller first_, second_, third_;
  Scratch scratch_;
  Executor executor_{1};
};

TEST_F(SharedByHandTest, OneBlockIsDoneForBoth) {
  Enter(first_);
  Enter(second_);
  EXPECT_TRUE(Run(first_));
  EXPECT_EQ(first_.out, Alone(first_));
  EXPECT_EQ(second_.out, Alone(second_));
  EXPECT_FALSE(second_.rows->Take().has_value());
  EXPECT_EQ(second_.rows->blocks_shared(), 1);
  EXPECT_TRUE(second_.done.get_future().get().ok());  // its only unit is done
}

TEST_F(SharedByHandTest, WhatGaveWayIsGivenBackAndGoesOn) {
  Enter(first_);
  Enter(second_);
  std::atomic<std::int64_t> waiting{1};
  WorkerContext hurried;
  hurried.waiting = &waiting;
  EXPECT_FALSE(Run(first_, hurried));
  EXPECT_TRUE(Run(second_));  // alone: the first one's block is its own
  EXPECT_EQ(second_.out, Alone(second_));
  EXPECT_TRUE(GoOn(first_));
  EXPECT_EQ(first_.out, Alone(first_));
}

TEST_F(SharedByHandTest, OnlyWhatStandsAtTheSameDepthGoesTogether) {
  second_.depth = third_.depth = kProjectionDepth;
  Enter(first_);
  Enter(second_);
  Enter(third_);
  EXPECT_TRUE(Run(first_));
  EXPECT_EQ(first_.rows->blocks_shared(), 0);
  EXPECT_TRUE(Run(second_));
  EXPECT_EQ(third_.rows->blocks_shared(), 1);
  for (Caller* caller : {&first_, &second_, &third_}) EXPECT_EQ(caller->out, Alone(*caller));
}

// The last moment at which somebody's state is looked at is when the other's unit begins.
TEST_F(SharedByHandTest, WhatWasStoppedIsGivenBack) {
  int asked = 0;
  second_.is_there = [&] {
    if (++asked == 2) first_.cancel.Cancel(absl::CancelledError("enough"));
    return true;
  };
  Enter(first_);
  Enter(second_);
  EXPECT_TRUE(Run(first_));
  EXPECT_EQ(asked, 2);
  EXPECT_TRUE(Run(second_));
  EXPECT_EQ(second_.out, Alone(second_));
}

TEST_F(SharedByHandTest, NothingIsTakenAlongThatIsNotThere) {
  bool there = false;
  second_.is_there = [&] { return there; };
  Enter(first_);
  Enter(second_);
  EXPECT_TRUE(Run(first_));
  EXPECT_EQ(first_.rows->blocks_shared(), 0);
  there = true;
  EXPECT_TRUE(Run(second_));
  EXPECT_EQ(second_.rows->blocks_shared(), 0);
  EXPECT_EQ(second_.out, Alone(second_));
}

TEST_F(SharedByHandTest, NothingIsTakenAlongOfAJobThatStops) {
  const auto token = std::make_shared<CancelToken>();
  Enter(first_);
  Enter(second_, token);
  token->Cancel(absl::CancelledError("enough"));
  EXPECT_TRUE(Run(first_));
  EXPECT_EQ(first_.rows->blocks_shared(), 0);
  executor_.Wake(second_.job);
  EXPECT_EQ(second_.done.get_future().get(), absl::CancelledError("enough"));
}

}  // namespace
}  // namespace attnd
