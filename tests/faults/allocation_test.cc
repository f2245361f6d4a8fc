// What the core asks of the allocator: this binary counts every call of operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "core/attention.h"
#include "tests/core/inputs.h"

namespace {

std::atomic<std::int64_t> allocations{0};

void* Allocate(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* const block = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

// Not inlined, lest the compiler believe that new and free are mismatched.
[[gnu::noinline]] void Release(void* block) { std::free(block); }

}  // namespace

void* operator new(std::size_t bytes) { return Allocate(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return Allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { Release(block); }
void operator delete[](void* block) noexcept { Release(block); }
void operator delete(void* block, std::size_t) noexcept { Release(block); }
void operator delete[](void* block, std::size_t) noexcept { Release(block); }
void operator delete(void* block, std::align_val_t) noexcept { Release(block); }
void operator delete[](void* block, std::align_val_t) noexcept { Release(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { Release(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { Release(block); }

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

}  // namespace
}  // namespace attnd
