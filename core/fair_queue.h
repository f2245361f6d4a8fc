// Who is next: jobs of many clients, shared out by what their units cost.
//
// Every flow (a client at one priority) gets compute in proportion to its weight while it has something to run; what it
// does not use is not saved up. Inside a flow, short jobs and long ones take turns by cost, so that a small problem
// never waits for a giant of the same client, and neither starves; among equals the earliest deadline is first, then
// who came first. Costs are whatever the caller charges: time, or units in a test. Nothing here reads a clock. Thread
// rule: no locks; the owner serialises all calls.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace attnd {

// Whose job it is and what it asks for.
struct JobClass {
  std::string client;       // jobs of one client share one flow at each weight
  std::int64_t weight = 4;  // > 0
  bool is_long = false;     // more than a few units' worth of work
  absl::Time deadline = absl::InfiniteFuture();
};

// What a queue keeps in a job. The job outlives its time between Enter and Leave.
class QueuedJob {
 public:
  explicit QueuedJob(JobClass job_class) : class_(std::move(job_class)) {}
  bool queued() const { return queued_; }
  const JobClass& job_class() const { return class_; }

 private:
  friend class FairQueue;
  JobClass class_;
  void* flow_ = nullptr;  // FairQueue::Flow
  std::uint64_t order_ = 0;
  bool queued_ = false;
};

class FairQueue {
 public:
  // A job belongs to the queue from Enter to Leave; in between it is queued or not. Enter allocates all that is needed
  // until Leave, and may throw std::bad_alloc.
  void Enter(QueuedJob& job);
  void Leave(QueuedJob& job);

  // Has something to run now. No effect on a job that is queued.
  void Push(QueuedJob& job);

  // Takes out the job that is due; null when none is queued. Its flow is charged `expected_cost` until Charge says
  // more.
  QueuedJob* Pop(double expected_cost);
  // What was really used, less what Pop expected.
  void Charge(QueuedJob& job, double more);

  // Jobs that are queued.
  std::int64_t size() const { return size_; }

 private:
  // The short jobs of a flow, or the long ones.
  struct Lane {
    double used = 0;
    std::vector<QueuedJob*> heap;  // earliest deadline first
  };
  struct Flow {
    double used = 0;  // cost over weight
    double weight = 1;
    double now = 0;         // what the lane that was served last had used
    std::int64_t jobs = 0;  // between Enter and Leave
    Lane lanes[2];
    bool empty() const { return lanes[0].heap.empty() && lanes[1].heap.empty(); }
  };
  static bool Later(const QueuedJob* a, const QueuedJob* b);
  static Lane& LaneOf(const QueuedJob& job) { return static_cast<Flow*>(job.flow_)->lanes[job.class_.is_long ? 1 : 0]; }

  std::map<std::pair<std::string, std::int64_t>, Flow> flows_;
  double now_ = 0;  // what the flow that was served last had used
  std::uint64_t entered_ = 0;
  std::int64_t size_ = 0;
  std::int64_t jobs_ = 0;
};

}  // namespace attnd
