// What stays under a name: its memory is counted once, within the store's maximum, and comes back; what a name is.
#include "server/store_budget.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace attnd::server {
namespace {

TEST(StoreBudgetTest, WhatIsStoredIsCountedHereAndAmongAllMemoryUntilItGoes) {
  Budget budget({.bytes = 1000});
  StoreBudget store(budget, 400);
  absl::StatusOr<StoreBytes> first = store.Take("alice", "tensor k", 300);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->bytes(), 300);
  EXPECT_EQ(store.bytes_used(), 300);
  EXPECT_EQ(budget.bytes_used(), 300);

  const absl::StatusOr<StoreBytes> now = store.Take("bob", "tensor v", 101);
  EXPECT_EQ(now.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(now.status().message().find("tensor v: 101 bytes needed, 300 of 400 taken now (store_bytes_max)"),
            absl::string_view::npos)
      << now.status();
  EXPECT_NE(now.status().message().find("retry after"), absl::string_view::npos);
  EXPECT_EQ(budget.bytes_used(), 300);  // nothing of what was refused

  StoreBytes moved = *std::move(first);
  const absl::StatusOr<StoreBytes> second = store.Take("bob", "tensor v", 100);
  ASSERT_TRUE(second.ok()) << second.status();
  moved = StoreBytes();
  EXPECT_EQ(store.bytes_used(), 100);
  EXPECT_EQ(budget.bytes_used(), 100);
}

TEST(StoreBudgetTest, WhatCanNeverFitIsRefusedWithoutAnInvitation) {
  Budget budget({.bytes = 1000});
  StoreBudget store(budget, 400);
  const absl::StatusOr<StoreBytes> never = store.Take("alice", "tensor k", 401);
  EXPECT_EQ(never.status(), absl::ResourceExhaustedError("tensor k: 401 bytes needed, 400 allowed (store_bytes_max)"));
  EXPECT_EQ(store.bytes_used(), 0);
}

TEST(StoreBudgetTest, NamesAreShortAndOfFewCharacters) {
  for (const std::string& name : {std::string("a"), std::string("llama-3_8b.layer.0"), std::string(64, '9')}) {
    EXPECT_TRUE(CheckStoredName("name", name).ok()) << name;
  }
  const std::string nul("a\0b", 3);
  for (const std::string& name : {std::string(), std::string(65, 'a'), std::string("A"), std::string("a/b"), nul,
                                  std::string("a b"), std::string("\xC3\xA9"), std::string("a\n")}) {
    EXPECT_EQ(CheckStoredName("name", name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(CheckStoredName("weight_set.name", "a\n").message(),
            "weight_set.name: \"a\\n\" of 2 bytes, expected 1 to 64 of a-z, 0-9, '.', '_' and '-'");
}

}  // namespace
}  // namespace attnd::server
