#include "core/executor.h"

#include <new>

#include "absl/time/clock.h"
#include "core/flush_subnormals.h"

namespace attnd {
void CancelToken::Cancel(absl::Status reason) {
  const std::lock_guard lock(mutex_);
  if (cancelled_.load(std::memory_order_relaxed)) return;
  reason_ = std::move(reason);
  cancelled_.store(true, std::memory_order_release);
}

bool CancelToken::ShouldStop() const {
  return cancelled_.load(std::memory_order_acquire) ||
         (deadline_ != absl::InfiniteFuture() && absl::Now() >= deadline_);
}

absl::Status CancelToken::status() const {
  if (cancelled_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  if (ShouldStop()) return absl::DeadlineExceededError("the deadline passed before the answer was complete");
  return absl::OkStatus();
}

Executor::Executor(int threads) {
  workers_.reserve(static_cast<std::size_t>(threads));
  for (int worker = 0; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { Work(worker); });
  }
}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const std::shared_ptr<Job>& job : in_flight_) {
      job->cancel_->Cancel(absl::CancelledError("the compute pool is shutting down"));
      Enqueue(job);
    }
  }
  work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Executor::Submit(std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  job->submitted_ = absl::Now();
  in_flight_.insert(job);
  if (stopping_) job->cancel_->Cancel(absl::CancelledError("the compute pool is shutting down"));
  Enqueue(job);
}

void Executor::Wake(const std::shared_ptr<Job>& job) {
  const std::lock_guard lock(mutex_);
  Enqueue(job);
}

std::int64_t Executor::jobs_in_flight() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(in_flight_.size());
}

void Executor::Enqueue(const std::shared_ptr<Job>& job) {
  if (job->queued_ || job->finished_) return;
  job->queued_ = true;
  ready_.push_back(job);
  work_.notify_one();
}

bool Executor::Exhausted(Job& job) {
  if (job.cancel_->ShouldStop()) return true;
  while (job.phase_ < job.phases_.size() && job.running_ == 0 && job.next_unit_ >= job.phases_[job.phase_].units) {
    ++job.phase_;
    job.next_unit_ = 0;
  }
  return job.phase_ == job.phases_.size();
}

void Executor::RunUnit(const std::shared_ptr<Job>& job, std::int64_t unit, WorkerContext& context) {
  const Phase& phase = job->phases_[job->phase_];  // stays while running_ > 0
  mutex_.unlock();
  try {
    phase.run(unit, context);
  } catch (const std::bad_alloc&) {
    job->cancel_->Cancel(absl::ResourceExhaustedError("out of memory while computing"));
  }
  mutex_.lock();
}

void Executor::Work(int worker) {
  const FlushSubnormals flush;
  WorkerContext context;
  context.worker = worker;
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return !ready_.empty() || (stopping_ && in_flight_.empty()); });
    if (ready_.empty()) return;
    const std::shared_ptr<Job> job = std::move(ready_.front());
    ready_.pop_front();
    job->queued_ = false;
    if (!Exhausted(*job)) {
      const Phase& phase = job->phases_[job->phase_];
      if (job->next_unit_ >= phase.units) continue;                    // the phase's last units still run elsewhere
      if (phase.may_start != nullptr && !phase.may_start()) continue;  // Wake brings it back
      const std::int64_t unit = job->next_unit_++;
      ++job->running_;
      if (job->started_ == absl::Time()) job->started_ = absl::Now();
      if (job->next_unit_ < phase.units) Enqueue(job);
      RunUnit(job, unit, context);
      --job->running_;
      Enqueue(job);
    } else if (job->running_ == 0 && !job->finished_) {
      job->finished_ = true;
      in_flight_.erase(job);
      const absl::Time now = absl::Now();
      JobReport report;
      // A job whose last unit ended is done, even when its deadline passed at that moment.
      if (job->phase_ < job->phases_.size()) report.status = job->cancel_->status();
      if (job->started_ == absl::Time()) job->started_ = now;
      report.queued = job->started_ - job->submitted_;
      report.computed = now - job->started_;
      const auto done = std::move(job->done_);
      job->phases_.clear();
      lock.unlock();
      done(report);
      lock.lock();
      if (stopping_) work_.notify_all();
    }
  }
}

}  // namespace attnd
