#include "core/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <new>
#include <string>
#include <thread>
#include <utility>

namespace attnd {
namespace {

// Submits and waits.
JobReport RunJob(Executor& executor, std::vector<Phase> phases,
                 std::shared_ptr<CancelToken> cancel = std::make_shared<CancelToken>()) {
  std::promise<JobReport> done;
  executor.Submit(std::make_shared<Job>(
      std::move(phases), std::move(cancel), [&done](const JobReport& report) { done.set_value(report); },
      JobClass{"client"}));
  return done.get_future().get();
}

Phase Count(std::int64_t units, std::function<void(std::int64_t)> fn) {
  Phase phase;
  phase.units = units;
  phase.run = [fn = std::move(fn)](std::int64_t unit, WorkerContext&) {
    fn(unit);
    return nullptr;
  };
  return phase;
}

// Uses that much of the CPU, however long it waits for it.
void Compute(absl::Duration duration) {
  const absl::Duration end = ThreadCpuTime() + duration;
  while (ThreadCpuTime() < end) continue;
}

TEST(ExecutorTest, RunsEveryUnitOnceAndPhasesInOrder) {
  Executor executor(3);
  constexpr std::int64_t kUnits = 1000;
  std::vector<std::atomic<int>> first(kUnits), second(kUnits);
  std::atomic<int> early{0};
  std::atomic<std::int64_t> done_first{0};
  const JobReport report = RunJob(
      executor, {Count(kUnits, [&](std::int64_t unit) { ++first[static_cast<std::size_t>(unit)], ++done_first; }),
                 Count(0, [&](std::int64_t) { ++early; }), Count(kUnits, [&](std::int64_t unit) {
                   if (done_first != kUnits) ++early;
                   ++second[static_cast<std::size_t>(unit)];
                 })});
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_EQ(early, 0);
  const auto once = [](const std::atomic<int>& count) { return count == 1; };
  EXPECT_TRUE(std::all_of(first.begin(), first.end(), once));
  EXPECT_TRUE(std::all_of(second.begin(), second.end(), once));
  EXPECT_EQ(executor.jobs_in_flight(), 0);
}

TEST(ExecutorTest, AJobWithoutWorkIsDone) {
  Executor executor(1);
  EXPECT_TRUE(RunJob(executor, {}).status.ok());
  EXPECT_TRUE(RunJob(executor, {Count(0, [](std::int64_t) {})}).status.ok());
}

TEST(ExecutorTest, ASmallJobDoesNotWaitForAllOfALargeOne) {
  Executor executor(1);
  std::promise<void> go;
  std::shared_future<void> gate = go.get_future().share();
  std::atomic<std::int64_t> large_units{0};
  std::promise<void> large_done;
  executor.Submit(std::make_shared<Job>(
      std::vector<Phase>{Count(1000,
                               [&, gate](std::int64_t) {
                                 gate.wait();
                                 ++large_units;
                               })},
      std::make_shared<CancelToken>(), [&](const JobReport&) { large_done.set_value(); },
      JobClass{"client", 4, /*is_long=*/true}));
  std::int64_t seen = -1;
  std::promise<void> small_done;
  executor.Submit(std::make_shared<Job>(
      std::vector<Phase>{Count(1, [&](std::int64_t) { seen = large_units; })}, std::make_shared<CancelToken>(),
      [&](const JobReport&) { small_done.set_value(); }, JobClass{"client"}));
  go.set_value();
  small_done.get_future().wait();
  EXPECT_GE(seen, 0);
  EXPECT_LE(seen, 2);
  large_done.get_future().wait();
  EXPECT_EQ(large_units, 1000);
}

// Jobs submitted while the only worker is held by another; then it is let go, and all are waited for.
std::vector<JobReport> RunTogether(const std::vector<std::pair<JobClass, Phase>>& jobs) {
  Executor executor(1);
  std::promise<void> go;
  std::shared_future<void> gate = go.get_future().share();
  executor.Submit(std::make_shared<Job>(
      std::vector<Phase>{Count(1, [gate](std::int64_t) { gate.wait(); })}, std::make_shared<CancelToken>(),
      [](const JobReport&) {}, JobClass{"gate"}));
  std::vector<std::promise<JobReport>> done(jobs.size());
  for (std::size_t n = 0; n < jobs.size(); ++n) {
    executor.Submit(std::make_shared<Job>(
        std::vector<Phase>{jobs[n].second}, std::make_shared<CancelToken>(),
        [&done, n](const JobReport& report) { done[n].set_value(report); }, jobs[n].first));
  }
  go.set_value();
  std::vector<JobReport> reports;
  for (std::promise<JobReport>& one : done) reports.push_back(one.get_future().get());
  return reports;
}

TEST(ExecutorTest, ShortJobsThatWaitTogetherDoNotTakeTurnsByTheUnit) {
  constexpr std::int64_t kJobs = 50, kUnits = 40;
  std::vector<std::pair<JobClass, Phase>> jobs;
  for (std::int64_t n = 0; n < kJobs; ++n) {
    jobs.emplace_back(JobClass{std::to_string(n)}, Count(kUnits, [](std::int64_t) {}));
  }
  std::int64_t slices = 0;
  for (const JobReport& report : RunTogether(jobs)) slices += report.slices;
  EXPECT_LE(slices, kJobs * kUnits / 4);  // one each, but where the system took the worker's core away
}

TEST(ExecutorTest, AClientDoesNotPayForTimeInWhichNothingWasComputed) {
  std::vector<int> order;
  std::vector<std::pair<JobClass, Phase>> jobs;
  for (int n = 0; n < 20; ++n) {
    jobs.emplace_back(JobClass{"kept waiting"}, Count(1, [&order](std::int64_t) {
                        std::this_thread::sleep_for(std::chrono::milliseconds(4));
                        order.push_back(0);
                      }));
    jobs.emplace_back(JobClass{"computing"}, Count(1, [&order](std::int64_t) {
                        Compute(absl::Milliseconds(1));
                        order.push_back(1);
                      }));
  }
  RunTogether(jobs);
  // By the clock on the wall the first client would have had 5 of its jobs done by then.
  EXPECT_GE(std::count(order.begin(), order.begin() + 20, 0), 10);
}

TEST(ExecutorTest, CancelStopsBetweenUnitsWithItsReason) {
  Executor executor(2);
  const auto cancel = std::make_shared<CancelToken>();
  std::atomic<int> units{0};
  const JobReport report = RunJob(executor,
                                  {Count(1'000'000,
                                         [&](std::int64_t) {
                                           const int unit = ++units;
                                           if (unit == 10) cancel->Cancel(absl::CancelledError("enough"));
                                           // A unit that the other worker had begun ends after the cancel, not before.
                                           while (unit > 10 && !cancel->ShouldStop()) std::this_thread::yield();
                                         })},
                                  cancel);
  EXPECT_EQ(report.status, absl::CancelledError("enough"));
  EXPECT_LE(units, 11);
}

// Runs until it is asked to give way, as often as it takes.
class Endless : public Rest {
 public:
  Endless(std::atomic<bool>& enough, std::atomic<int>& pauses) : enough_(enough), pauses_(pauses) {}
  bool Run(WorkerContext& context) override {
    while (!enough_ && !context.ShouldPause()) std::this_thread::yield();
    pauses_ += !enough_;
    return enough_;
  }

 private:
  std::atomic<bool>& enough_;
  std::atomic<int>& pauses_;
};

Phase EndlessPhase(std::atomic<bool>& enough, std::atomic<int>& pauses) {
  Phase phase;
  phase.units = 1;
  phase.run = [&enough, &pauses](std::int64_t, WorkerContext& context) -> std::unique_ptr<Rest> {
    auto rest = std::make_unique<Endless>(enough, pauses);
    if (rest->Run(context)) return nullptr;
    return rest;
  };
  return phase;
}

TEST(ExecutorTest, AUnitGivesWayToOthersAndIsTakenUpAgain) {
  Executor executor(1);
  std::atomic<bool> enough{false};
  std::atomic<int> pauses{0};
  std::promise<JobReport> giant;
  executor.Submit(std::make_shared<Job>(
      std::vector<Phase>{EndlessPhase(enough, pauses)}, std::make_shared<CancelToken>(),
      [&](const JobReport& report) { giant.set_value(report); }, JobClass{"client", 4, /*is_long=*/true}));
  // The only worker is busy for good once it has begun, and still others are served.
  while (pauses == 0) EXPECT_TRUE(RunJob(executor, {Count(1, [](std::int64_t) {})}).status.ok());
  enough = true;
  const JobReport report = giant.get_future().get();
  EXPECT_TRUE(report.status.ok());
  EXPECT_EQ(report.slices, 1 + pauses);
  EXPECT_EQ(report.gave_way, pauses);
  EXPECT_EQ(report.workers, 1);
}

TEST(ExecutorTest, UnitsAreCountedUntilTheyEnd) {
  Executor executor(1);
  EXPECT_EQ(executor.units_in_flight(), 0);
  std::atomic<bool> enough{false};
  std::promise<void> begun;
  std::promise<JobReport> done;
  const Phase first = Count(5, [&](std::int64_t unit) {
    if (unit == 0) begun.set_value();
    while (!enough) std::this_thread::yield();
  });
  executor.Submit(std::make_shared<Job>(
      std::vector<Phase>{first, Count(7, [](std::int64_t) {})}, std::make_shared<CancelToken>(),
      [&](const JobReport& report) { done.set_value(report); }, JobClass{"client"}));
  begun.get_future().wait();
  EXPECT_EQ(executor.units_in_flight(), 5);  // of the phase that it is in, the one that runs too
  enough = true;
  EXPECT_TRUE(done.get_future().get().status.ok());
  EXPECT_EQ(executor.units_in_flight(), 0);
}

TEST(ExecutorTest, CancelEndsAJobWhoseUnitGaveWay) {
  Executor executor(1);
  std::atomic<bool> never{false};
  std::atomic<int> pauses{0};
  Phase phase;
  phase.units = 1;
  phase.run = [&](std::int64_t, WorkerContext&) { return std::make_unique<Endless>(never, pauses); };
  const auto cancel = std::make_shared<CancelToken>();
  std::promise<JobReport> done;
  executor.Submit(std::make_shared<Job>(
      std::vector<Phase>{phase}, cancel, [&](const JobReport& report) { done.set_value(report); },
      JobClass{"client", 4, /*is_long=*/true}));
  while (pauses == 0) RunJob(executor, {Count(1, [](std::int64_t) {})});
  cancel->Cancel(absl::CancelledError("enough"));
  RunJob(executor, {Count(1, [](std::int64_t) {})});
  EXPECT_EQ(done.get_future().get().status, absl::CancelledError("enough"));
}

TEST(ExecutorTest, AJobThatStopsWhileItWaitsEndsBeforeItsTurn) {
  Executor executor(1);
  std::atomic<bool> enough{false};
  std::atomic<int> pauses{0}, units{0};
  // The waiting one's flow has used so much that it would not be due for a long time.
  std::promise<void> spent;
  executor.Submit(std::make_shared<Job>(
      std::vector<Phase>{Count(1, [](std::int64_t) { Compute(absl::Milliseconds(20)); })},
      std::make_shared<CancelToken>(), [&](const JobReport&) { spent.set_value(); }, JobClass{"spender", 1}));
  std::promise<void> giant_done;
  executor.Submit(std::make_shared<Job>(
      std::vector<Phase>{EndlessPhase(enough, pauses)}, std::make_shared<CancelToken>(),
      [&](const JobReport&) { giant_done.set_value(); }, JobClass{"giant", std::int64_t{1} << 40, /*is_long=*/true}));
  spent.get_future().wait();
  std::promise<JobReport> done;
  const auto cancel = std::make_shared<CancelToken>();
  const auto waiting = std::make_shared<Job>(
      std::vector<Phase>{Count(1, [&](std::int64_t) { ++units; })}, cancel,
      [&](const JobReport& report) { done.set_value(report); }, JobClass{"spender", 1});
  executor.Submit(waiting);
  cancel->Cancel(absl::CancelledError("enough"));
  executor.Wake(waiting);
  EXPECT_EQ(done.get_future().get().status, absl::CancelledError("enough"));
  EXPECT_EQ(units, 0);
  EXPECT_FALSE(enough);  // the giant goes on
  enough = true;
  giant_done.get_future().wait();
}

TEST(ExecutorTest, APassedDeadlineNeverStarts) {
  Executor executor(1);
  std::atomic<int> units{0};
  const JobReport report =
      RunJob(executor, {Count(5, [&](std::int64_t) { ++units; })}, std::make_shared<CancelToken>(absl::InfinitePast()));
  EXPECT_EQ(report.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(units, 0);
}

TEST(ExecutorTest, OutOfMemoryEndsTheJobAndNotTheProcess) {
  Executor executor(2);
  const JobReport report = RunJob(executor, {Count(100, [](std::int64_t unit) {
                                    if (unit == 3) throw std::bad_alloc();
                                  })});
  EXPECT_EQ(report.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RunJob(executor, {Count(10, [](std::int64_t) {})}).status.ok());
}

TEST(ExecutorTest, WorkHeldBackStartsWhenWoken) {
  Executor executor(2);
  std::atomic<bool> room{false};
  std::atomic<int> units{0};
  Phase phase = Count(8, [&](std::int64_t) { ++units; });
  phase.ready = [&] { return room ? std::int64_t{8} : 0; };
  std::promise<void> done;
  const auto job = std::make_shared<Job>(std::vector<Phase>{phase}, std::make_shared<CancelToken>(),
                                         [&](const JobReport&) { done.set_value(); });
  executor.Submit(job);
  EXPECT_TRUE(RunJob(executor, {Count(50, [](std::int64_t) {})}).status.ok());
  EXPECT_EQ(units, 0);
  room = true;
  executor.Wake(job);
  done.get_future().wait();
  EXPECT_EQ(units, 8);
}

// A job whose units cannot run by themselves, and what becomes of it.
struct Held {
  explicit Held(std::int64_t units) {
    Phase phase = Count(units, [this](std::int64_t) { ++run; });
    phase.ready = [] { return std::int64_t{0}; };
    job = std::make_shared<Job>(
        std::vector<Phase>{phase}, cancel, [this](const JobReport& result) { done.set_value(result); },
        JobClass{"held"});
  }
  std::atomic<int> run{0};
  std::shared_ptr<CancelToken> cancel = std::make_shared<CancelToken>();
  std::promise<JobReport> done;
  std::future<JobReport> report = done.get_future();
  std::shared_ptr<Job> job;
  bool IsDone() const { return report.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
};

TEST(ExecutorTest, UnitsOfAJobMayBeDoneByAnotherJobsUnit) {
  Executor executor(1);
  Held held(2);
  EXPECT_FALSE(executor.Hold(*held.job));  // not submitted
  executor.Submit(held.job);
  absl::Duration for_held;
  const JobReport own = RunJob(executor, {Count(1, [](std::int64_t) {}), [&] {
                                            Phase phase;
                                            phase.units = 1;
                                            phase.run = [&](std::int64_t, WorkerContext& context) {
                                              const absl::Duration start = ThreadCpuTime();
                                              EXPECT_TRUE(executor.Hold(*held.job));
                                              EXPECT_TRUE(executor.Hold(*held.job));
                                              executor.Release(*held.job, true, absl::ZeroDuration(), context);
                                              EXPECT_EQ(executor.units_in_flight(), 1 + 2);
                                              while (ThreadCpuTime() - start < absl::Milliseconds(20)) continue;
                                              for_held = ThreadCpuTime() - start;
                                              EXPECT_FALSE(held.IsDone());
                                              executor.Release(*held.job, true, for_held, context);
                                              return nullptr;
                                            };
                                            return phase;
                                          }()});
  const JobReport report = held.report.get();
  EXPECT_TRUE(report.status.ok());
  EXPECT_EQ(held.run, 0);
  EXPECT_EQ(report.undone, 0);
  EXPECT_GE(report.worked, for_held);
  EXPECT_LT(own.worked, for_held);  // it pays for what it did for itself
}

TEST(ExecutorTest, AJobThatIsHeldEndsWhenItIsReleased) {
  Executor executor(1);
  Held held(1);
  executor.Submit(held.job);
  ASSERT_TRUE(executor.Hold(*held.job));
  held.cancel->Cancel(absl::CancelledError("enough"));
  for (int n = 0; n < 3; ++n) {
    executor.Wake(held.job);
    RunJob(executor, {Count(1, [](std::int64_t) {})});
  }
  EXPECT_FALSE(held.IsDone());
  EXPECT_FALSE(executor.Hold(*held.job));
  const WorkerContext context;
  executor.Release(*held.job, false, absl::ZeroDuration(), context);
  EXPECT_EQ(held.report.get().status, absl::CancelledError("enough"));
  EXPECT_FALSE(executor.Hold(*held.job));
}

TEST(ExecutorTest, AJobIsBroughtOnToWhereJobsMeet) {
  Executor executor(1);
  int first = 0, second = 0, meeting = 0;
  Phase meet = Count(2, [&](std::int64_t) { ++meeting; });
  meet.meeting = true;
  std::promise<JobReport> done;
  const auto other = std::make_shared<Job>(
      std::vector<Phase>{Count(3, [&](std::int64_t) { ++first; }), Count(4, [&](std::int64_t) { ++second; }), meet},
      std::make_shared<CancelToken>(), [&](const JobReport& report) { done.set_value(report); }, JobClass{"other"});
  Phase bring;
  bring.units = 1;
  bring.run = [&](std::int64_t, WorkerContext& context) {
    executor.BringOn(*other, context);  // not there yet
    EXPECT_EQ(first, 0);
    executor.Submit(other);
    for (int again = 0; again < 2; ++again) {
      executor.BringOn(*other, context);
      EXPECT_EQ(first, 3);
      EXPECT_EQ(second, 4);
      EXPECT_EQ(meeting, 0);
    }
    return nullptr;
  };
  EXPECT_TRUE(RunJob(executor, {bring}).status.ok());
  EXPECT_TRUE(done.get_future().get().status.ok());
  EXPECT_EQ(meeting, 2);
  // One that is stopped is not: it ends.
  Held held(1);
  held.cancel->Cancel(absl::CancelledError("enough"));
  executor.Submit(held.job);
  EXPECT_FALSE(held.report.get().status.ok());
  Phase again;
  again.units = 1;
  again.run = [&](std::int64_t, WorkerContext& context) {
    executor.BringOn(*held.job, context);
    return nullptr;
  };
  EXPECT_TRUE(RunJob(executor, {again}).status.ok());
}

TEST(ExecutorTest, DestructionCancelsAndReportsEveryJob) {
  std::atomic<int> reports{0};
  {
    Executor executor(2);
    for (int n = 0; n < 20; ++n) {
      Phase phase = Count(1, [](std::int64_t) {});
      phase.ready = [] { return std::int64_t{0}; };
      executor.Submit(std::make_shared<Job>(std::vector<Phase>{phase}, std::make_shared<CancelToken>(),
                                            [&](const JobReport& report) {
                                              EXPECT_EQ(report.status.code(), absl::StatusCode::kCancelled);
                                              ++reports;
                                            }));
    }
  }
  EXPECT_EQ(reports, 20);
}

TEST(MachineTest, SaysSomethingUsable) {
  EXPECT_GE(UsableCpus(), 1);
  EXPECT_GE(UsableMemoryBytes(), std::int64_t{1} << 20);
}

}  // namespace
}  // namespace attnd
