// The compute pool: a fixed number of worker threads that take units of work from jobs, one unit each in turn.
//
// A job is a list of phases run one after another; a phase is a number of units that may run at the same time in any
// order. Between two units a worker looks for the next due job (round robin), so a small job never waits for all of a
// large one. Workers flush subnormal numbers. Nothing here knows what attention is. Thread rule: every public function
// may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/buffer.h"

namespace attnd {

// Says whether work should stop. Polled between tiles; cheap enough for that.
class CancelToken {
 public:
  explicit CancelToken(absl::Time deadline = absl::InfiniteFuture()) : deadline_(deadline) {}

  // The first reason wins.
  void Cancel(absl::Status reason);
  // True when cancelled or past the deadline.
  bool ShouldStop() const;
  // OK, the reason given to Cancel, or DEADLINE_EXCEEDED.
  absl::Status status() const;
  absl::Time deadline() const { return deadline_; }

 private:
  const absl::Time deadline_;
  std::atomic<bool> cancelled_{false};
  mutable std::mutex mutex_;
  absl::Status reason_;
};

// Memory of one worker, reused from unit to unit.
struct WorkerContext {
  int worker = 0;
  Scratch scratch;
};

struct Phase {
  std::int64_t units = 0;
  std::function<void(std::int64_t unit, WorkerContext& context)> run;
  // When set and false, no unit starts until Executor::Wake is called for the job.
  std::function<bool()> may_start;
};

// What happened to a job, handed to its owner once.
struct JobReport {
  absl::Status status;  // OK, or why it stopped early
  absl::Duration queued;
  absl::Duration computed;
};

class Job {
 public:
  Job(std::vector<Phase> phases, std::shared_ptr<CancelToken> cancel, std::function<void(const JobReport&)> done)
      : phases_(std::move(phases)), cancel_(std::move(cancel)), done_(std::move(done)) {}

 private:
  friend class Executor;
  std::vector<Phase> phases_;
  std::shared_ptr<CancelToken> cancel_;
  std::function<void(const JobReport&)> done_;  // runs on a worker, exactly once, after the last unit ended
  // Below: guarded by Executor::mutex_.
  std::size_t phase_ = 0;
  std::int64_t next_unit_ = 0;
  std::int64_t running_ = 0;
  bool queued_ = false;  // stands in Executor::ready_
  bool finished_ = false;
  absl::Time submitted_, started_;
};

class Executor {
 public:
  explicit Executor(int threads);
  // Cancels what still runs and joins. Every job's done is called.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The job's `done` will be called exactly once, from a worker.
  void Submit(std::shared_ptr<Job> job);
  // Looks again at a job that may_start held back or that was cancelled.
  void Wake(const std::shared_ptr<Job>& job);

  int threads() const { return static_cast<int>(workers_.size()); }
  // Submitted and not yet done.
  std::int64_t jobs_in_flight() const;

 private:
  // All but Work expect mutex_ to be held.
  void Work(int worker);
  void RunUnit(const std::shared_ptr<Job>& job, std::int64_t unit, WorkerContext& context);
  void Enqueue(const std::shared_ptr<Job>& job);
  // Moves past phases that are done; true when nothing of the job is left to run.
  static bool Exhausted(Job& job);

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::shared_ptr<Job>> ready_;
  std::unordered_set<std::shared_ptr<Job>> in_flight_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

// Threads this process should compute with: the affinity mask, cut by the cgroup's CPU quota (v1 and v2), at least 1.
int UsableCpus();

// Bytes of memory this process may use: the cgroup's limit (v1 and v2), cut by the machine's.
std::int64_t UsableMemoryBytes();

}  // namespace attnd
