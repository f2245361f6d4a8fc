// What stays under a name: its memory is counted once, within the store's maximum, and comes back; what a name is.
#include "server/store_budget.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

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

TEST(StoreBudgetTest, AnOwnerHasItsPolicysShareAndNoMore) {
  Budget budget({.bytes = 1000});
  StoreBudget store(budget, 400);
  absl::StatusOr<StoreBytes> first = store.Take("alice", "tensor k", 60, 100);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status now = store.Take("alice", "tensor v", 41, 100).status();
  EXPECT_EQ(now.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(now.message(),
            "tensor v, of this identity: 41 bytes needed, 60 of 100 taken now (store_bytes_max of its policy); retry "
            "after 200 ms");
  // What can never fit is no matter of time.
  EXPECT_EQ(store.Take("alice", "tensor v", 101, 100).status(),
            absl::ResourceExhaustedError(
                "tensor v, of this identity: 101 bytes needed, 100 allowed (store_bytes_max of its policy)"));
  EXPECT_EQ(budget.bytes_used(), 60);  // nothing of what was refused
  // Nobody else's share is touched, and who has no limit has what the flag leaves.
  const absl::StatusOr<StoreBytes> other = store.Take("bob", "tensor v", 100, 100), free = store.Take("", "x", 240);
  ASSERT_TRUE(other.ok() && free.ok());
  EXPECT_EQ(store.Owners(),
            (std::vector<std::pair<std::string, std::int64_t>>{{"", 240}, {"alice", 60}, {"bob", 100}}));
  EXPECT_EQ(store.Take("carol", "x", 1).status().message(),
            "x: 1 bytes needed, 400 of 400 taken now (store_bytes_max); retry after 200 ms");
  // A limit that was lowered below what is there takes nothing away, and lets nothing in.
  EXPECT_FALSE(store.Take("alice", "tensor v", 1, 50).ok());
  first = StoreBytes();
  EXPECT_EQ(store.Owners(), (std::vector<std::pair<std::string, std::int64_t>>{{"", 240}, {"bob", 100}}));
  EXPECT_TRUE(store.Take("alice", "tensor v", 50, 50).ok());
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
