// The compute pool: a fixed number of worker threads that take slices of work from jobs, shared fairly among clients.
//
// A job is a list of phases run one after another; a phase is a number of units that may run at the same time in any
// order. A worker asks the FairQueue who is due and runs units of that job for a slice of a millisecond, of a long job
// no further than to the end of a unit when another waits; a long unit gives way when its slice is over, and any worker
// takes it up again later. Short jobs that wait together are so run one after the other, without a turn at the queue or
// a wake-up for each unit. Workers flush subnormal numbers and stand behind the process's other threads. Nothing here
// knows what attention is. Thread rule: every public function may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/buffer.h"
#include "core/clock.h"
#include "core/fair_queue.h"

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
  // When it began to say stop: the first Cancel or the deadline, whichever was earlier.
  absl::Time stop_time() const;

 private:
  const absl::Time deadline_;
  std::atomic<bool> cancelled_{false};
  mutable std::mutex mutex_;
  absl::Status reason_;
  absl::Time cancel_time_ = absl::InfiniteFuture();
};

// Memory of one worker, reused from unit to unit, and whether its unit should give way.
struct WorkerContext {
  int worker = 0;
  Scratch scratch;
  // True when the unit has had its slice and another job waits. Only a unit that can be taken up again need ask.
  bool ShouldPause() const {
    return waiting != nullptr && waiting->load(std::memory_order_relaxed) > own && Now() >= slice_end;
  }

  // Set by the executor; nobody waits for a context without one.
  const std::atomic<std::int64_t>* waiting = nullptr;
  std::int64_t own = 0;  // of these, the unit's own job
  absl::Time slice_end;
  // Of this slice, what units of other jobs are charged for: see Executor::Release.
  mutable absl::Duration for_others;
};

// What is left of a unit that gave way, to be taken up by any worker.
class Rest {
 public:
  virtual ~Rest() = default;
  // True when the unit is done, false when it gave way again.
  virtual bool Run(WorkerContext& context) = 0;
};

struct Phase {
  std::int64_t units = 0;
  absl::Duration unit_time = absl::Milliseconds(1);  // about; what is short is not worth waking another worker
  // Null when the unit is done.
  std::function<std::unique_ptr<Rest>(std::int64_t unit, WorkerContext& context)> run;
  // When set, no unit of this number or a higher one starts; Executor::Wake says that there may be more.
  std::function<std::int64_t()> ready;
  // Jobs meet here, and BringOn goes no further.
  bool meeting = false;
};

// What happened to a job, handed to its owner once.
struct JobReport {
  absl::Status status;        // OK, or why it stopped early
  absl::Duration queued;      // to the first unit
  absl::Duration computed;    // from there to the end of the last
  absl::Duration worked;      // CPU time of workers in its units, added up
  std::int64_t slices = 0;    // times that a worker took it up
  std::int64_t gave_way = 0;  // times that a unit gave way to others
  std::int64_t workers = 0;   // different ones
  double undone = 0;          // the part of its units' time that was not run to its end
  absl::Duration stopped_in;  // when it stopped early: from the token's stop_time until no unit ran
};

class Job : private QueuedJob {
 public:
  Job(std::vector<Phase> phases, std::shared_ptr<CancelToken> cancel, std::function<void(const JobReport&)> done,
      JobClass job_class = {})
      : QueuedJob(std::move(job_class)),
        phases_(std::move(phases)),
        cancel_(std::move(cancel)),
        done_(std::move(done)) {}

 private:
  friend class Executor;
  std::vector<Phase> phases_;
  std::shared_ptr<CancelToken> cancel_;
  std::function<void(const JobReport&)> done_;  // runs on a worker, exactly once, after the last unit ended
  // Below: guarded by Executor::mutex_.
  std::size_t phase_ = 0;
  std::int64_t next_unit_ = 0;
  std::int64_t running_ = 0;
  std::int64_t slices_ = 0, gave_way_ = 0;
  absl::Duration estimated_, estimated_done_;  // of all units' time
  absl::Duration worked_;
  std::vector<bool> workers_;                 // who took a slice
  std::vector<std::unique_ptr<Rest>> rests_;  // of this phase's units that gave way; room for one a worker
  bool stopped_ = false, finished_ = false;
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
  // Looks again at a job whose units were not ready, or at once at one that should stop.
  void Wake(const std::shared_ptr<Job>& job);

  // A unit of one job may do a unit of another job beside its own. From a Hold that gave true to its Release the other
  // counts as having one more unit that runs: it neither ends nor goes on to its next phase. False when it is not
  // submitted yet, was stopped or has ended.
  bool Hold(Job& job);
  // `done`: the phase that it is in has one unit less to run, if any is left. `worked` is charged to the job, not to
  // that of `context`'s unit.
  void Release(Job& job, bool done, absl::Duration worked, const WorkerContext& context);
  // From a unit of another job, which needs no scratch: runs what the job can run now, at its own charge, up to a
  // phase where jobs meet. No effect on one that is not submitted yet or has ended.
  void BringOn(Job& job, WorkerContext& context);

  // Whether the caller is a worker, of any pool.
  static bool OnWorker();

  int threads() const { return static_cast<int>(workers_.size()); }
  // Submitted and not yet done.
  std::int64_t jobs_in_flight() const;
  // Units of these jobs that run, or that are left of the phase that their job is in.
  std::int64_t units_in_flight() const;

 private:
  // All but Work expect mutex_ to be held.
  void Work(int worker);
  // One slice of a job that has something to run.
  void RunSlice(Job& job, WorkerContext& context, std::unique_lock<std::mutex>& lock);
  void Enqueue(Job& job);
  // The same, and at once where the job should stop.
  void LookAt(Job& job);
  // Jobs may be known to others a moment before they are submitted.
  static bool IsInFlight(const Job& job);
  // Takes it from the job whose slice `context` is in.
  void ChargeInstead(Job& job, absl::Duration worked, const WorkerContext& context);
  void CountWaiting();
  // One unit, or the rest of one, with `lock` released meanwhile.
  void RunUnit(Job& job, WorkerContext& context, std::unique_lock<std::mutex>& lock);
  // Reports, with `lock` released meanwhile; the job is gone then.
  void End(Job& job, std::unique_lock<std::mutex>& lock);
  // Moves past phases that are done; true when nothing of the job is left to run.
  static bool Exhausted(Job& job);
  // Whether a worker could take up something of it now.
  static bool HasWork(const Job& job);
  // Whether what is left of its phase is worth waking a worker for.
  static bool IsWorthWaking(const Job& job);

  mutable std::mutex mutex_;
  std::condition_variable work_;
  FairQueue queue_;
  std::atomic<std::int64_t> waiting_{0};  // in queue_ and stopped_, for workers that do not hold mutex_
  std::unordered_map<Job*, std::shared_ptr<Job>> in_flight_;
  std::vector<Job*> stopped_;  // of in_flight_, to be ended whoever is due; room for all
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

// Threads this process should compute with: the affinity mask, cut by the CPU quota of its cgroups (v1 and v2), at
// least 1.
int UsableCpus();

// What the calling thread has computed, without what it waited.
absl::Duration ThreadCpuTime();

// Bytes of memory this process may use: the limit of its cgroups (v1 and v2), cut by the machine's.
std::int64_t UsableMemoryBytes();

}  // namespace attnd
