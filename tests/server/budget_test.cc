// What is held together and by each connection: limits, shares, and that everything comes back.
#include "server/budget.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace attnd::server {
namespace {

constexpr BudgetLimits kLimits = {.bytes = 1000, .queue_problems = 8, .queue_bytes = 600, .connection_percent = 50};

// Refused now, in these words (the flag's name among them), with an invitation to come again.
void ExpectNotNow(const absl::Status& status, const std::string& words) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find(words), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("retry after"), absl::string_view::npos) << status;
}

TEST(BudgetTest, MemoryIsCountedWhileItIsHeld) {
  Budget budget(kLimits);
  Reservation message(budget.AccountOf("a"));
  ASSERT_TRUE(message.GrowTo("bytes of the message", 300).ok());
  ASSERT_TRUE(message.GrowTo("bytes of memory", 200).ok());  // it has more already
  EXPECT_EQ(budget.bytes_used(), 300);
  ASSERT_TRUE(message.GrowTo("bytes of memory", 700).ok());
  EXPECT_EQ(budget.bytes_used(), 700);
  message.ShrinkTo(100);
  Reservation moved = std::move(message);
  EXPECT_EQ(budget.bytes_used(), 100);
  EXPECT_EQ(moved.bytes(), 100);
  moved = Reservation();
  EXPECT_EQ(budget.bytes_used(), 0);
}

TEST(BudgetTest, WhatIsRefusedIsCounted) {
  Budget budget(kLimits);
  Reservation all(budget.AccountOf("a")), more(budget.AccountOf("b"));
  ASSERT_TRUE(all.GrowTo("bytes of memory", 1000).ok());
  EXPECT_EQ(budget.memory_refusals(), 0);
  EXPECT_FALSE(more.GrowTo("bytes of memory", 1).ok());     // now
  EXPECT_FALSE(more.GrowTo("bytes of memory", 1001).ok());  // ever
  EXPECT_EQ(budget.memory_refusals(), 2);
  EXPECT_EQ(budget.queue_refusals(), 0);
  {
    const absl::StatusOr<QueuePlace> place = budget.Queue(budget.AccountOf("a"), 500);
    ASSERT_TRUE(place.ok());
    EXPECT_EQ(budget.queue_problems(), 1);
    EXPECT_EQ(budget.queue_bytes(), 500);
    EXPECT_FALSE(budget.Queue(budget.AccountOf("b"), 500).ok());
  }
  EXPECT_EQ(budget.queue_refusals(), 1);
  EXPECT_EQ(budget.queue_problems(), 0);
  EXPECT_EQ(budget.memory_refusals(), 2);
}

TEST(BudgetTest, WhatIsNotFreeNowInvitesToRetryAndWhatNeverIsDoesNot) {
  Budget budget(kLimits);
  Reservation all(budget.AccountOf("a")), more(budget.AccountOf("b"));
  ASSERT_TRUE(all.GrowTo("bytes of memory", 1000).ok());  // its connection's only problem
  ExpectNotNow(more.GrowTo("bytes of memory", 1), "memory_bytes_max");
  EXPECT_EQ(more.bytes(), 0);
  const absl::Status never = more.GrowTo("bytes of memory", 1001);
  EXPECT_EQ(never.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(never.message().find("retry"), absl::string_view::npos) << never;
  EXPECT_EQ(never, budget.CheckEver("bytes of memory", 1001));
  all.ShrinkTo(0);
  EXPECT_TRUE(more.GrowTo("bytes of memory", 1).ok());
}

TEST(BudgetTest, OverloadComesInSteps) {
  Budget budget({.bytes = 6400, .queue_problems = 100, .queue_bytes = 6400, .connection_percent = 100});
  const auto grows = [&budget](std::int64_t bytes) {
    Reservation reservation(budget.AccountOf("other"));
    return reservation.GrowTo("bytes of memory", bytes);
  };
  Reservation held(budget.AccountOf("holder"));
  ASSERT_TRUE(held.GrowTo("bytes of memory", 5439).ok());  // just below 85 percent of 64 parts of 100
  EXPECT_TRUE(grows(961).ok());
  ASSERT_TRUE(held.GrowTo("bytes of memory", 5440).ok());  // 85 percent: what is large, more than a 64th, is refused
  ExpectNotNow(grows(101), "overload: bytes of memory: 101 needed while others hold 85 % of 6400; smaller problems");
  EXPECT_TRUE(grows(100).ok());
  ASSERT_TRUE(held.GrowTo("bytes of memory", 6080).ok());  // 95 percent: all that is new is
  ExpectNotNow(grows(1), "overload: bytes of memory: 1 needed while others hold 95 % of 6400 (memory_bytes_max)");
  // What holds the memory itself may go on.
  EXPECT_TRUE(held.GrowTo("bytes of memory", 6400).ok());
}

TEST(BudgetTest, AnIdentityHasALimitOfItsOwn) {
  Budget budget(kLimits);
  Reservation one(budget.AccountOf("identity:a", 300)), two(budget.AccountOf("identity:a", 300));
  EXPECT_TRUE(one.GrowTo("bytes of memory", 200).ok());
  ExpectNotNow(two.GrowTo("bytes of memory", 101),
               "bytes of memory, of this identity: 101 more needed, 200 of 300 taken now (bytes_in_flight_max)");
  EXPECT_TRUE(two.GrowTo("bytes of memory", 100).ok());
  two.ShrinkTo(0);
  const std::shared_ptr<Account> raised = budget.AccountOf("identity:a", 400);  // by a new auth file
  EXPECT_TRUE(two.GrowTo("bytes of memory", 101).ok());
}

TEST(BudgetTest, OneConnectionKeepsNoOtherFromItsMemory) {
  Budget budget(kLimits);
  const std::shared_ptr<Account> greedy = budget.AccountOf("greedy");
  std::vector<Reservation> held;
  absl::Status refused;
  while (refused.ok()) {
    Reservation problem(greedy);
    refused = problem.GrowTo("bytes of memory", 100);
    if (refused.ok()) held.push_back(std::move(problem));
  }
  EXPECT_EQ(held.size(), 5U);  // half of 1000
  ExpectNotNow(refused, "connection_percent_max");
  ExpectNotNow(held.front().GrowTo("bytes of memory", 101), "connection_percent_max");
  Reservation other(budget.AccountOf("other"));
  EXPECT_TRUE(other.GrowTo("bytes of memory", 500).ok());
  held.clear();
  Reservation again(greedy);
  EXPECT_TRUE(again.GrowTo("bytes of memory", 500).ok());
}

TEST(BudgetTest, TheQueueHasLimitsOfProblemsAndBytes) {
  Budget budget(kLimits);
  std::vector<QueuePlace> places;
  for (int client = 0; client < 8; ++client) {
    absl::StatusOr<QueuePlace> place = budget.Queue(budget.AccountOf(std::to_string(client)), 10);
    ASSERT_TRUE(place.ok()) << place.status();
    places.push_back(*std::move(place));
  }
  ExpectNotNow(budget.Queue(budget.AccountOf("late"), 10).status(), "queue_problems_max");
  places.resize(1);
  ExpectNotNow(budget.Queue(budget.AccountOf("large"), 591).status(), "queue_bytes_max");
  EXPECT_TRUE(budget.Queue(budget.AccountOf("large"), 590).ok());
  places.clear();
  EXPECT_TRUE(budget.Queue(budget.AccountOf("large"), 1000000).ok());  // alone
}

TEST(BudgetTest, OneConnectionKeepsNoOtherFromTheQueue) {
  Budget budget(kLimits);
  const std::shared_ptr<Account> greedy = budget.AccountOf("greedy");
  std::vector<QueuePlace> places;
  for (int problem = 0; problem < 4; ++problem) {
    absl::StatusOr<QueuePlace> place = budget.Queue(greedy, 10);
    ASSERT_TRUE(place.ok()) << place.status();
    places.push_back(*std::move(place));
  }
  ExpectNotNow(budget.Queue(greedy, 10).status(), "connection_percent_max");
  places.resize(3);
  ExpectNotNow(budget.Queue(greedy, 271).status(), "connection_percent_max");  // half of 600, 30 taken
  EXPECT_TRUE(budget.Queue(greedy, 270).ok());
  EXPECT_TRUE(budget.Queue(budget.AccountOf("other"), 400).ok());
}

TEST(BudgetTest, AnAccountIsAPeersWhileSomethingIsHeldAndForgottenAfterwards) {
  Budget budget(kLimits);
  std::shared_ptr<Account> first = budget.AccountOf("a");
  EXPECT_EQ(first, budget.AccountOf("a"));
  EXPECT_NE(first, budget.AccountOf("b"));
  const std::weak_ptr<Account> gone = first;
  Reservation held(std::move(first));
  ASSERT_TRUE(held.GrowTo("bytes of memory", 1).ok());
  EXPECT_FALSE(gone.expired());
  held = Reservation();
  EXPECT_TRUE(gone.expired());
}

TEST(BudgetTest, NothingIsLostAmongThreads) {
  Budget budget(kLimits);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget, t] {
      for (int i = 0; i < 2000; ++i) {
        const std::shared_ptr<Account> account = budget.AccountOf(std::to_string((t + i) % 3));
        Reservation held(account);
        const absl::StatusOr<QueuePlace> place = budget.Queue(account, i % 300);
        if (held.GrowTo("bytes of memory", i % 700).ok()) held.ShrinkTo(i % 11);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.bytes_used(), 0);
  Reservation all(budget.AccountOf("a"));
  EXPECT_TRUE(all.GrowTo("bytes of memory", 1000).ok());
}

}  // namespace
}  // namespace attnd::server
