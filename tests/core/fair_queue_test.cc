// Who is served, and how often, with units of known cost and no clock.
#include "core/fair_queue.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <random>

namespace attnd {
namespace {

struct Unit {
  std::string client;
  std::int64_t weight = 4;
  double cost = 1;
  bool is_long = false;
  absl::Time deadline = absl::InfiniteFuture();
};

// Jobs that always have one more unit, each of its own cost.
class Backlog {
 public:
  explicit Backlog(std::vector<Unit> units) : units_(std::move(units)) {
    for (const Unit& unit : units_) Add(unit);
  }
  ~Backlog() {
    for (QueuedJob& job : jobs_) queue_.Leave(job);
    EXPECT_EQ(queue_.size(), 0);
  }

  QueuedJob& Add(const Unit& unit) {
    QueuedJob& job = jobs_.emplace_back(JobClass{unit.client, unit.weight, unit.is_long, unit.deadline});
    cost_[&job] = unit.cost;
    queue_.Enter(job);
    queue_.Push(job);
    return job;
  }

  // Serves one unit; what each client used grows by its cost.
  const QueuedJob* Serve() {
    QueuedJob* const job = queue_.Pop(1);
    const double cost = cost_.at(job);
    queue_.Charge(*job, cost - 1);
    queue_.Push(*job);
    used[job->job_class().client] += cost;
    used_lane[job->job_class().is_long] += cost;
    return job;
  }

  std::map<std::string, double> used;
  std::map<bool, double> used_lane;
  FairQueue& queue() { return queue_; }

 private:
  std::vector<Unit> units_;
  std::deque<QueuedJob> jobs_;
  std::map<const QueuedJob*, double> cost_;
  FairQueue queue_;
};

TEST(FairQueueTest, SharesFollowTheWeights) {
  Backlog backlog({{"low", 1}, {"normal", 4}, {"high", 16}});
  for (int n = 0; n < 2100; ++n) backlog.Serve();
  EXPECT_NEAR(backlog.used["low"], 100, 1);
  EXPECT_NEAR(backlog.used["normal"], 400, 1);
  EXPECT_NEAR(backlog.used["high"], 1600, 1);
}

TEST(FairQueueTest, SharesAreOfCostAndNotOfUnits) {
  Backlog backlog({{"large units", 4, 10}, {"small units", 4, 1}});
  for (int n = 0; n < 1100; ++n) backlog.Serve();
  EXPECT_NEAR(backlog.used["large units"], 1000, 10);
  EXPECT_NEAR(backlog.used["small units"], 1000, 10);
}

TEST(FairQueueTest, AFloodDoesNotSlowAnotherBeyondItsShare) {
  std::vector<Unit> units(1000, Unit{"flood"});
  units.push_back({"trickle"});
  Backlog backlog(units);
  for (int n = 0; n < 200; ++n) backlog.Serve();
  EXPECT_NEAR(backlog.used["trickle"], 100, 1);
}

TEST(FairQueueTest, IdleTimeIsNotSavedUp) {
  Backlog backlog({{"early"}});
  for (int n = 0; n < 1000; ++n) backlog.Serve();
  backlog.Add({"late"});
  backlog.used.clear();
  for (int n = 0; n < 100; ++n) backlog.Serve();
  EXPECT_NEAR(backlog.used["early"], 50, 1);
  EXPECT_NEAR(backlog.used["late"], 50, 1);
}

TEST(FairQueueTest, LeavingDoesNotWipeOutWhatWasUsed) {
  FairQueue queue;
  QueuedJob other(JobClass{"other"}), greedy(JobClass{"greedy"}), again(JobClass{"greedy"});
  queue.Enter(other);
  queue.Enter(greedy);
  queue.Push(greedy);
  EXPECT_EQ(queue.Pop(100), &greedy);
  queue.Push(other);
  queue.Leave(greedy);
  queue.Enter(again);
  queue.Push(again);
  for (int n = 0; n < 50; ++n) {
    EXPECT_EQ(queue.Pop(1), &other);
    queue.Push(other);
  }
  queue.Leave(again);
  queue.Leave(other);
}

TEST(FairQueueTest, AShortJobGoesBeforeTheLongOnesOfItsClient) {
  Backlog backlog({{"one", 4, 1, /*is_long=*/true}, {"one", 4, 1, /*is_long=*/true}});
  for (int n = 0; n < 100; ++n) backlog.Serve();
  QueuedJob& small = backlog.Add({"one"});
  EXPECT_EQ(backlog.Serve(), &small);
}

TEST(FairQueueTest, ShortJobsDoNotStarveTheLongOnesOfTheirClient) {
  Backlog backlog({{"one", 4, 1, /*is_long=*/true}, {"one"}, {"one"}});
  for (int n = 0; n < 100; ++n) backlog.Serve();
  EXPECT_NEAR(backlog.used_lane[true], 50, 1);
}

TEST(FairQueueTest, TheEarliestDeadlineOfAClientIsFirstThenWhoCameFirst) {
  FairQueue queue;
  QueuedJob never(JobClass{"one"}), later(JobClass{"one", 4, false, absl::FromUnixSeconds(20)}),
      sooner(JobClass{"one", 4, false, absl::FromUnixSeconds(10)}), never_too(JobClass{"one"});
  for (QueuedJob* const job : {&never, &later, &sooner, &never_too}) {
    queue.Enter(*job);
    queue.Push(*job);
    queue.Push(*job);  // once is enough
  }
  EXPECT_EQ(queue.size(), 4);
  for (QueuedJob* const job : {&sooner, &later, &never, &never_too}) EXPECT_EQ(queue.Pop(1), job);
  EXPECT_EQ(queue.Pop(1), nullptr);
  for (QueuedJob* const job : {&never, &later, &sooner, &never_too}) queue.Leave(*job);
}

// Whatever the weights and costs, no client that always waits falls behind another by more than a unit of each.
TEST(FairQueueTest, NobodyFallsBehindByMoreThanAUnit) {
  std::mt19937 generator(1);
  const auto pick = [&generator](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(generator);
  };
  for (int round = 0; round < 50; ++round) {
    std::vector<Unit> units;
    std::map<std::string, double> weight;
    double slack = 0;
    for (int n = pick(2, 8); n > 0; --n) {
      units.push_back({"client " + std::to_string(n), std::int64_t{1} << (2 * pick(0, 2)), 0.5 * pick(1, 20)});
      weight[units.back().client] = static_cast<double>(units.back().weight);
      slack = std::max(slack, 2 * units.back().cost / weight[units.back().client]);
    }
    Backlog backlog(units);
    for (int n = 0; n < 3000; ++n) backlog.Serve();
    for (const auto& [a, a_weight] : weight) {
      for (const auto& [b, b_weight] : weight) {
        EXPECT_LE(std::abs(backlog.used[a] / a_weight - backlog.used[b] / b_weight), slack) << round;
      }
    }
  }
}

}  // namespace
}  // namespace attnd
