#include "core/executor.h"

#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <new>

#include "core/clock.h"
#include "core/flush_subnormals.h"

namespace attnd {
namespace {

// Made before it is needed: when memory has run out, there is none for a status.
const absl::Status& OutOfMemory() {
  static const auto* const status = new absl::Status(absl::ResourceExhaustedError("out of memory while computing"));
  return *status;
}

// How long a unit runs while others wait.
constexpr absl::Duration kSlice = absl::Milliseconds(1);
// To wake a worker and wait for it takes a few tens of microseconds.
constexpr absl::Duration kWorthWaking = absl::Microseconds(100);

thread_local bool on_worker = false;

// Whoever reads and writes for the callers runs at once, however many cores compute: a small call beside a giant took
// milliseconds before, and tenths of one since. On Linux a thread has a niceness of its own; without it things work
// too.
void YieldToOthers() {
  constexpr int kNiceness = 10;
  setpriority(PRIO_PROCESS, 0, kNiceness);
}

}  // namespace

absl::Duration ThreadCpuTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

void CancelToken::Cancel(absl::Status reason) {
  const std::lock_guard lock(mutex_);
  if (cancelled_.load(std::memory_order_relaxed)) return;
  reason_ = std::move(reason);
  cancel_time_ = Now();
  cancelled_.store(true, std::memory_order_release);
}

bool CancelToken::ShouldStop() const {
  return cancelled_.load(std::memory_order_acquire) || (deadline_ != absl::InfiniteFuture() && Now() >= deadline_);
}

absl::Status CancelToken::status() const {
  if (cancelled_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  if (ShouldStop()) return absl::DeadlineExceededError("the deadline passed before the answer was complete");
  return absl::OkStatus();
}

absl::Time CancelToken::stop_time() const {
  const std::lock_guard lock(mutex_);
  return std::min(cancel_time_, deadline_);
}

Executor::Executor(int threads) {
  OutOfMemory();
  workers_.reserve(static_cast<std::size_t>(threads));
  for (int worker = 0; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { Work(worker); });
  }
}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& [job, shared] : in_flight_) {
      job->cancel_->Cancel(absl::CancelledError("the compute pool is shutting down"));
      Enqueue(*job);
    }
  }
  work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Executor::Submit(std::shared_ptr<Job> job) {
  // What may fail to be allocated comes first: nothing below Enter does.
  job->rests_.reserve(workers_.size());
  job->workers_.resize(workers_.size());
  for (const Phase& phase : job->phases_) job->estimated_ += phase.units * phase.unit_time;
  const std::lock_guard lock(mutex_);
  Job& submitted = *job;
  stopped_.reserve(in_flight_.size() + 1);
  in_flight_.emplace(&submitted, std::move(job));
  try {
    queue_.Enter(submitted);
  } catch (const std::bad_alloc&) {
    in_flight_.erase(&submitted);
    throw;
  }
  submitted.submitted_ = Now();
  if (stopping_) submitted.cancel_->Cancel(absl::CancelledError("the compute pool is shutting down"));
  Enqueue(submitted);
  work_.notify_one();
}

void Executor::Wake(const std::shared_ptr<Job>& job) {
  const std::lock_guard lock(mutex_);
  if (!job->finished_) LookAt(*job);
}

bool Executor::Hold(Job& job) {
  const std::lock_guard lock(mutex_);
  if (!IsInFlight(job) || job.cancel_->ShouldStop()) return false;
  if (job.started_ == absl::Time()) job.started_ = Now();
  ++job.running_;
  return true;
}

void Executor::Release(Job& job, bool done, absl::Duration worked, const WorkerContext& context) {
  const std::lock_guard lock(mutex_);
  ChargeInstead(job, worked, context);
  const Phase& phase = job.phases_[job.phase_];
  if (done && job.next_unit_ < phase.units) {
    ++job.next_unit_;
    job.estimated_done_ += phase.unit_time;
  }
  if (--job.running_ == 0) LookAt(job);
}

void Executor::BringOn(Job& job, WorkerContext& context) {
  std::unique_lock lock(mutex_);
  if (!IsInFlight(job)) return;
  const absl::Duration start = ThreadCpuTime(), for_others = context.for_others;
  const std::int64_t own = context.own;
  while (!Exhausted(job) && !job.phases_[job.phase_].meeting && HasWork(job) && !context.ShouldPause()) {
    RunUnit(job, context, lock);
  }
  context.own = own;
  ChargeInstead(job, ThreadCpuTime() - start - (context.for_others - for_others), context);
  if (job.running_ == 0) LookAt(job);
}

bool Executor::IsInFlight(const Job& job) { return job.submitted_ != absl::Time() && !job.finished_; }

void Executor::ChargeInstead(Job& job, absl::Duration worked, const WorkerContext& context) {
  context.for_others += worked;
  job.worked_ += worked;
  queue_.Charge(job, absl::ToDoubleSeconds(worked));
}

std::int64_t Executor::jobs_in_flight() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(in_flight_.size());
}

std::int64_t Executor::units_in_flight() const {
  const std::lock_guard lock(mutex_);
  std::int64_t units = 0;
  for (const auto& [job, shared] : in_flight_) {
    units += job->running_ + static_cast<std::int64_t>(job->rests_.size());
    if (job->phase_ < job->phases_.size()) units += job->phases_[job->phase_].units - job->next_unit_;
  }
  return units;
}

void Executor::Enqueue(Job& job) {
  queue_.Push(job);
  CountWaiting();
}

void Executor::LookAt(Job& job) {
  if (!job.cancel_->ShouldStop()) {
    Enqueue(job);
  } else if (!std::exchange(job.stopped_, true)) {
    stopped_.push_back(&job);
    CountWaiting();
  }
  work_.notify_one();
}

void Executor::CountWaiting() {
  waiting_.store(queue_.size() + static_cast<std::int64_t>(stopped_.size()), std::memory_order_relaxed);
}

bool Executor::Exhausted(Job& job) {
  if (job.cancel_->ShouldStop()) return true;
  while (job.phase_ < job.phases_.size() && job.running_ == 0 && job.rests_.empty() &&
         job.next_unit_ >= job.phases_[job.phase_].units) {
    ++job.phase_;
    job.next_unit_ = 0;
  }
  return job.phase_ == job.phases_.size();
}

bool Executor::HasWork(const Job& job) {
  if (!job.rests_.empty()) return true;
  const Phase& phase = job.phases_[job.phase_];
  // Units that run elsewhere bring the job back when they end, and Wake does when more are ready.
  return job.next_unit_ < phase.units && (phase.ready == nullptr || job.next_unit_ < phase.ready());
}

bool Executor::IsWorthWaking(const Job& job) {
  const Phase& phase = job.phases_[job.phase_];
  return !job.rests_.empty() || (phase.units - job.next_unit_) * phase.unit_time >= kWorthWaking;
}

void Executor::RunSlice(Job& job, WorkerContext& context, std::unique_lock<std::mutex>& lock) {
  ++job.slices_;
  job.workers_[static_cast<std::size_t>(context.worker)] = true;
  const absl::Time start = Now();
  // When a worker was not let on a core for a while, whose unit it ran must not pay.
  const absl::Duration cpu_start = ThreadCpuTime();
  if (job.started_ == absl::Time()) job.started_ = start;
  context.slice_end = start + kSlice;
  context.for_others = absl::ZeroDuration();
  bool goes_on = true, others_wait = false;
  do {
    RunUnit(job, context, lock);
    goes_on = !Exhausted(job) && HasWork(job);
    others_wait = waiting_ > (job.queued() ? 1 : 0);
  } while (goes_on && !(others_wait && job.job_class().is_long) && Now() < context.slice_end);
  const absl::Duration used = ThreadCpuTime() - cpu_start - context.for_others;
  job.worked_ += used;
  queue_.Charge(job, absl::ToDoubleSeconds(used - kSlice));
  if (goes_on) {
    Enqueue(job);  // this worker looks again by itself
    if (queue_.size() > 1) work_.notify_one();
  } else if (job.running_ == 0 && Exhausted(job)) {
    End(job, lock);
  }
}

void Executor::RunUnit(Job& job, WorkerContext& context, std::unique_lock<std::mutex>& lock) {
  const Phase& phase = job.phases_[job.phase_];  // stays while running_ > 0
  std::unique_ptr<Rest> rest;
  std::int64_t unit = 0;
  if (job.rests_.empty()) {
    unit = job.next_unit_++;
  } else {
    rest = std::move(job.rests_.back());
    job.rests_.pop_back();
  }
  ++job.running_;
  if (!job.queued() && HasWork(job)) {
    Enqueue(job);
    if (IsWorthWaking(job)) work_.notify_one();
  }
  context.own = job.queued() ? 1 : 0;
  lock.unlock();
  try {
    if (rest == nullptr) {
      rest = phase.run(unit, context);
    } else if (rest->Run(context)) {
      rest.reset();
    }
  } catch (const std::bad_alloc&) {
    rest.reset();
    job.cancel_->Cancel(OutOfMemory());
  }
  lock.lock();
  --job.running_;
  if (rest != nullptr) {
    ++job.gave_way_;
    job.rests_.push_back(std::move(rest));  // there is room: one a worker at most
  } else if (!job.cancel_->ShouldStop()) {
    job.estimated_done_ += phase.unit_time;
  }
}

void Executor::End(Job& job, std::unique_lock<std::mutex>& lock) {
  job.finished_ = true;
  std::erase(stopped_, &job);
  queue_.Leave(job);
  const std::shared_ptr<Job> keep = std::move(in_flight_.extract(&job).mapped());
  const absl::Time now = Now();
  JobReport report;
  // A job whose last unit ended is done, even when its deadline passed at that moment.
  if (job.phase_ < job.phases_.size()) {
    report.status = job.cancel_->status();
    if (job.estimated_ > absl::ZeroDuration()) {
      report.undone = 1 - absl::FDivDuration(job.estimated_done_, job.estimated_);
    }
    report.stopped_in = now - std::min(now, job.cancel_->stop_time());
  }
  if (job.started_ == absl::Time()) job.started_ = now;
  report.queued = job.started_ - job.submitted_;
  report.computed = now - job.started_;
  report.worked = job.worked_;
  report.slices = job.slices_;
  report.gave_way = job.gave_way_;
  report.workers = std::count(job.workers_.begin(), job.workers_.end(), true);
  const auto done = std::move(job.done_);
  lock.unlock();
  job.rests_.clear();
  job.phases_.clear();
  done(report);
  lock.lock();
  if (stopping_) work_.notify_all();
}

bool Executor::OnWorker() { return on_worker; }

void Executor::Work(int worker) {
  on_worker = true;
  const FlushSubnormals flush;
  YieldToOthers();
  WorkerContext context;
  context.worker = worker;
  context.waiting = &waiting_;
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return queue_.size() > 0 || !stopped_.empty() || (stopping_ && in_flight_.empty()); });
    if (!stopped_.empty()) {
      Job& stopped = *stopped_.back();
      stopped_.pop_back();
      CountWaiting();
      stopped.stopped_ = false;
      if (stopped.running_ == 0) End(stopped, lock);  // else whoever runs it does
      continue;
    }
    QueuedJob* const due = queue_.Pop(absl::ToDoubleSeconds(kSlice));
    if (due == nullptr) return;
    CountWaiting();
    Job& job = static_cast<Job&>(*due);
    const bool exhausted = Exhausted(job);
    if (!exhausted && HasWork(job)) {
      RunSlice(job, context, lock);
      continue;
    }
    queue_.Charge(job, -absl::ToDoubleSeconds(kSlice));  // nothing was used
    if (exhausted && job.running_ == 0) End(job, lock);
  }
}

}  // namespace attnd
