// A running problem that can be stopped from any thread: before its job exists, while it runs and after it ended.
// Thread rule: every function from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "core/executor.h"

namespace attnd::server {

class Stopper {
 public:
  Stopper(Executor& executor, absl::Time deadline)
      : executor_(executor), token_(std::make_shared<CancelToken>(deadline)) {}

  std::shared_ptr<CancelToken> token() const {
    const std::lock_guard lock(mutex_);
    return token_;
  }

  // Before the token is handed to a job: the problem ends by `deadline` where that is earlier than its own.
  void EndBy(absl::Time deadline) {
    const std::lock_guard lock(mutex_);
    if (deadline >= token_->deadline()) return;
    auto earlier = std::make_shared<CancelToken>(deadline);
    if (absl::Status status = token_->status(); !status.ok()) earlier->Cancel(std::move(status));
    token_ = std::move(earlier);
  }

  // The job that the token belongs to, once it was submitted. It is looked at once more: until now a Wake found nobody.
  void Set(std::shared_ptr<Job> job) {
    {
      const std::lock_guard lock(mutex_);
      job_ = std::move(job);
    }
    Wake();
  }

  // The first reason wins.
  void Stop(absl::Status reason) {
    {
      const std::lock_guard lock(mutex_);
      token_->Cancel(std::move(reason));
    }
    Wake();
  }

  // Lets the pool look at the job again: there is room for its rows, or its deadline passed.
  void Wake() {
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      job = job_;
    }
    if (job != nullptr) executor_.Wake(job);
  }

 private:
  Executor& executor_;
  mutable std::mutex mutex_;
  std::shared_ptr<CancelToken> token_;  // guarded by mutex_, like the next
  std::shared_ptr<Job> job_;
};

}  // namespace attnd::server
