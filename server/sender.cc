#include "server/sender.h"

#include <utility>

#include "core/executor.h"

namespace attnd::server {

Sender::Sender() : thread_([this] { Run(); }) {}

Sender::~Sender() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Sender::Do(std::function<void()> task) {
  if (!Executor::OnWorker()) return task();
  Later(std::move(task));
}

void Sender::Later(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void Sender::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace attnd::server
