#include "core/fair_queue.h"

#include <algorithm>
#include <iterator>

namespace attnd {

bool FairQueue::Later(const QueuedJob* a, const QueuedJob* b) {
  if (a->class_.deadline != b->class_.deadline) return a->class_.deadline > b->class_.deadline;
  return a->order_ > b->order_;
}

void FairQueue::Enter(QueuedJob& job) {
  Flow& flow = flows_[{job.class_.client, job.class_.weight}];
  flow.weight = static_cast<double>(std::max<std::int64_t>(1, job.class_.weight));
  for (Lane& lane : flow.lanes) lane.heap.reserve(static_cast<std::size_t>(flow.jobs + 1));
  ++flow.jobs;
  ++jobs_;
  job.flow_ = &flow;
  job.order_ = entered_++;
}

void FairQueue::Leave(QueuedJob& job) {
  Flow& flow = *static_cast<Flow*>(job.flow_);
  if (job.queued_) {
    std::vector<QueuedJob*>& heap = LaneOf(job).heap;
    heap.erase(std::find(heap.begin(), heap.end(), &job));
    std::make_heap(heap.begin(), heap.end(), Later);
    job.queued_ = false;
    --size_;
  }
  job.flow_ = nullptr;
  --flow.jobs;
  if (--jobs_ > 0) return;
  flows_.clear();  // nobody is left to be fair to
  now_ = 0;
}

void FairQueue::Push(QueuedJob& job) {
  if (job.queued_) return;
  job.queued_ = true;
  Flow& flow = *static_cast<Flow*>(job.flow_);
  Lane& lane = LaneOf(job);
  // What was not used is not saved up.
  if (flow.empty()) flow.used = std::max(flow.used, now_);
  if (lane.heap.empty()) lane.used = std::max(lane.used, flow.now);
  lane.heap.push_back(&job);
  std::push_heap(lane.heap.begin(), lane.heap.end(), Later);
  ++size_;
}

QueuedJob* FairQueue::Pop(double expected_cost) {
  Flow* due = nullptr;
  for (auto it = flows_.begin(); it != flows_.end();) {
    Flow& flow = it->second;
    if (!flow.empty() && (due == nullptr || flow.used < due->used)) due = &flow;
    // A flow that used more than its share is remembered until the others have caught up, lest it come back as new.
    it = flow.jobs == 0 && flow.used <= now_ ? flows_.erase(it) : std::next(it);
  }
  if (due == nullptr) return nullptr;
  now_ = std::max(now_, due->used);
  Lane& shorter = due->lanes[0];
  Lane& longer = due->lanes[1];
  Lane& lane = longer.heap.empty() || (!shorter.heap.empty() && shorter.used <= longer.used) ? shorter : longer;
  due->now = std::max(due->now, lane.used);
  std::pop_heap(lane.heap.begin(), lane.heap.end(), Later);
  QueuedJob* const job = lane.heap.back();
  lane.heap.pop_back();
  job->queued_ = false;
  --size_;
  Charge(*job, expected_cost);
  return job;
}

void FairQueue::Charge(QueuedJob& job, double more) {
  Flow& flow = *static_cast<Flow*>(job.flow_);
  flow.used += more / flow.weight;
  LaneOf(job).used += more;
}

}  // namespace attnd
