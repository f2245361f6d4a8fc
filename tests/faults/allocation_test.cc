// What the core asks of the allocator, and what becomes of a problem when it says no, at each of its requests in turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "core/attention.h"
#include "tests/core/inputs.h"
#include "tests/core/random_problem.h"
#include "tests/faults/failing_new.h"

namespace attnd {
namespace {

TEST(AllocationTest, ASmallProblemAllocatesNothingOnceItsThreadIsWarm) {
  TensorStore store;
  ProblemInputs inputs;
  inputs.q = store.Filled({1, 1, 5, 64}, 0.25, DType::kFloat32);
  inputs.k = store.Filled({1, 1, 5, 64}, 0.5, DType::kFloat32);
  inputs.v = store.Filled({1, 1, 5, 64}, 3.0, DType::kFloat32);
  inputs.options.causal = true;
  inputs.outputs = {OutputKind::kLse};
  const absl::StatusOr<Problem> problem = Problem::Create(inputs, {});
  ASSERT_TRUE(problem.ok()) << problem.status();
  const std::shared_ptr<const Problem> shared(std::shared_ptr<void>(), &*problem);
  std::vector<std::byte> output(5 * 64 * 4), lse(5 * 4);
  DenseSink sink(*problem,
                 [&](OutputKind kind, std::int64_t) { return kind == OutputKind::kLse ? lse.data() : output.data(); });
  Executor executor(1);
  const auto cancel = std::make_shared<CancelToken>();
  int answers = 0;
  const std::function<void(const AttentionReport&)> done = [&answers](const AttentionReport& report) {
    answers += report.status.ok();
  };
  StartAttention(shared, sink, executor, cancel, done);
  const std::int64_t before = allocations;
  for (int run = 0; run < 10; ++run) StartAttention(shared, sink, executor, cancel, done);
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(answers, 11);
  // Equal logits give equal weights: every output is the value that all keys share.
  for (const float value :
       std::vector<float>(reinterpret_cast<float*>(output.data()), reinterpret_cast<float*>(output.data()) + 5 * 64)) {
    EXPECT_EQ(value, 3.0F);
  }
}

// One run: its tensors, or RESOURCE_EXHAUSTED from the job, or nothing where bad_alloc came to the caller, who has its
// problem still.
absl::StatusOr<DenseAnswer> RunOnce(const ProblemInputs& inputs, Executor& executor) {
  // Made while there is memory for it.
  static const absl::Status out_of_memory = absl::ResourceExhaustedError("bad_alloc");
  try {
    const absl::StatusOr<Problem> problem = Problem::Create(inputs, {});
    if (!problem.ok()) return problem.status();
    return Attend(*problem, executor);
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  }
}

// Fails each allocation of a run, the first, the second, and so on until a run meets none that fails. After each the
// pool is idle and the next run gives the very bytes. Gives how many runs failed.
std::int64_t FailEachAllocation(const ProblemInputs& inputs, Executor& executor, std::int64_t count) {
  const absl::StatusOr<DenseAnswer> right = RunOnce(inputs, executor);
  EXPECT_TRUE(right.ok()) << right.status();
  if (!right.ok()) return 0;
  std::int64_t failed = 0;
  for (std::int64_t n = 1;; ++n) {
    std::optional<absl::StatusOr<DenseAnswer>> answer;
    bool met = false;
    {
      const FailingAllocation failing(n, count);
      answer = RunOnce(inputs, executor);
      met = failing.HasFailed();
    }
    if (!answer->ok()) {
      ++failed;
      EXPECT_EQ(answer->status().code(), absl::StatusCode::kResourceExhausted) << answer->status();
      EXPECT_TRUE(met);
      answer = RunOnce(inputs, executor);
    }
    EXPECT_TRUE(answer->ok()) << answer->status();
    if (answer->ok()) {
      EXPECT_EQ((*answer)->tensors, right->tensors) << "after allocation " << n;
    }
    if (!met || ::testing::Test::HasFailure()) return failed;
  }
}

struct Path {
  const char* name;
  std::function<void(ProblemInputs&, TensorStore&)> set;
};

const std::vector<Path>& Paths() {
  static const auto* const paths = new std::vector<Path>{
      {"tiles", [](ProblemInputs&, TensorStore&) {}},
      {"reference", [](ProblemInputs& i, TensorStore&) { i.options.reference = true; }},
      {"weights and scores",
       [](ProblemInputs& i, TensorStore&) {
         i.outputs = {OutputKind::kWeights, OutputKind::kLse, OutputKind::kScoresBiased};
       }},
      {"weights of the reference",
       [](ProblemInputs& i, TensorStore&) {
         i.options.reference = true;
         i.outputs = {OutputKind::kWeights, OutputKind::kLse};
       }},
      {"ragged",
       [](ProblemInputs& i, TensorStore&) {
         i.options.q_len = {60, 3};
         i.options.kv_len = {1, 120};
         i.options.causal = true;
       }},
      {"pages",
       [](ProblemInputs& i, TensorStore& store) {
         i.k = store.Filled({4, 1, 60, 16}, 0.5, DType::kFloat32);
         i.v = store.Filled({4, 1, 60, 16}, 1.5, DType::kFloat32);
         i.options.page_table = store.Ints({2, 2}, {0, 3, 3, 1});
       }},
      {"rotary",
       [](ProblemInputs& i, TensorStore&) {
         i.options.rotary.emplace();
         i.options.rotary->rotary_dim = 8;
       }},
  };
  return *paths;
}

TEST(AllocationTest, EachAllocationMayFailOnEveryPath) {
  Executor executor(2);
  for (const Path& path : Paths()) {
    for (const std::int64_t count : {1, 3}) {
      SCOPED_TRACE(testing::Message() << path.name << ", " << count << " in a row");
      TensorStore store;
      std::mt19937 generator(5);
      ProblemInputs inputs = RandomInputs({2, 2, 1, 100, 120, 16, 16}, store, generator);
      path.set(inputs, store);
      EXPECT_GT(FailEachAllocation(inputs, executor, count), 4);
    }
  }
  EXPECT_EQ(executor.jobs_in_flight(), 0);
}

// Keys that are cut into ranges, and projections, whose shapes are their own.
TEST(AllocationTest, EachAllocationMayFailWithRangesAndProjections) {
  Executor executor(2);
  TensorStore store;
  std::mt19937 generator(6);
  EXPECT_GT(FailEachAllocation(RandomInputs({1, 4, 1, 1, 20000, 16, 16}, store, generator), executor, 1), 10);
  ProblemInputs inputs;
  inputs.x = store.Filled({2, 40, 24}, 0.5, DType::kFloat32);
  inputs.projection.emplace();
  inputs.projection->q_heads = inputs.projection->kv_heads = 2;
  for (auto* weights : {&inputs.projection->w_q, &inputs.projection->w_k, &inputs.projection->w_v}) {
    *weights = store.Filled({24, 32}, 0.25, DType::kFloat32);
  }
  inputs.projection->w_o = store.Filled({32, 20}, 0.125, DType::kFloat32);
  for (const bool reference : {false, true}) {
    inputs.options.reference = reference;
    EXPECT_GT(FailEachAllocation(inputs, executor, 1), 10);
  }
  EXPECT_EQ(executor.jobs_in_flight(), 0);
}

// Problems that share products: whatever fails, the others are right and none is left behind.
TEST(AllocationTest, EachAllocationMayFailOfProblemsThatShareProducts) {
  constexpr std::int64_t kProblems = 3, kRows = 4, kIn = 300, kHeads = 2, kWidth = 150;
  TensorStore store;
  std::mt19937 generator(7);
  const auto noise = [&](std::vector<std::int64_t> shape) {
    const std::int64_t count = CheckedProduct(shape).value();
    return store.Floats(std::move(shape), Normal(count, generator), DType::kFloat32);
  };
  ProjectionInputs weights;
  weights.q_heads = weights.kv_heads = kHeads;
  for (auto* matrix : {&weights.w_q, &weights.w_k, &weights.w_v}) *matrix = noise({kIn, kHeads * kWidth});
  weights.w_o = noise({kHeads * kWidth, kIn});
  std::deque<Problem> problems;
  std::vector<std::vector<std::byte>> right, answers(kProblems, std::vector<std::byte>(kRows * kIn * 4));
  std::deque<DenseSink> sinks;
  Executor executor(2);
  for (std::int64_t n = 0; n < kProblems; ++n) {
    ProblemInputs inputs;
    inputs.x = noise({1, kRows, kIn});
    inputs.projection = weights;
    problems.push_back(Made(inputs));
    right.push_back(Attend(problems.back(), executor)->tensors[static_cast<std::size_t>(OutputKind::kOutput)]);
    auto& answer = answers[static_cast<std::size_t>(n)];
    sinks.emplace_back(problems.back(), [&answer](OutputKind, std::int64_t) { return answer.data(); });
  }
  std::int64_t failed = 0;
  bool met = true;
  for (std::int64_t n = 1; met && !::testing::Test::HasFailure(); ++n) {
    std::vector<absl::Status> statuses(kProblems, absl::UnknownError("not done"));
    std::vector<std::promise<void>> done(kProblems);
    std::vector<std::shared_ptr<CancelToken>> tokens;
    for (std::int64_t problem = 0; problem < kProblems; ++problem) tokens.push_back(std::make_shared<CancelToken>());
    const FailingAllocation failing(n);
    for (std::size_t p = 0; p < kProblems; ++p) {
      try {
        StartAttention(std::shared_ptr<const Problem>(std::shared_ptr<void>(), &problems[p]), sinks[p], executor,
                       tokens[p], [&, p](const AttentionReport& report) {
                         statuses[p] = report.status;
                         done[p].set_value();
                       });
      } catch (const std::bad_alloc&) {
        statuses[p] = absl::ResourceExhaustedError("");
        done[p].set_value();
      }
    }
    for (std::promise<void>& one : done) one.get_future().wait();
    met = failing.HasFailed();
    int failures = 0;
    for (std::size_t p = 0; p < kProblems; ++p) {
      if (statuses[p].ok()) {
        EXPECT_EQ(answers[p], right[p]) << "after allocation " << n;
      } else {
        EXPECT_EQ(statuses[p].code(), absl::StatusCode::kResourceExhausted) << statuses[p];
        ++failures;
      }
    }
    EXPECT_LE(failures, 1);
    failed += failures;
  }
  EXPECT_GT(failed, 20);
  EXPECT_EQ(executor.jobs_in_flight(), 0);
}

TEST(AllocationTest, EachAllocationMayFailOfProblemsMadeByChance) {
  Executor executor(2);
  for (unsigned seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    TensorStore store;
    std::mt19937 generator(seed);
    const Pick pick = PickFrom(generator);
    const Shape shape = RandomShape(pick);
    FailEachAllocation(RandomProblem(pick, shape, store), executor, 1);
  }
  EXPECT_EQ(executor.jobs_in_flight(), 0);
}

}  // namespace
}  // namespace attnd
