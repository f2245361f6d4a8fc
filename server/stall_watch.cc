#include "server/stall_watch.h"

#include <chrono>
#include <utility>
#include <vector>

#include "core/clock.h"

namespace attnd::server {

StallWatch::StallWatch(absl::Duration period) : period_(period), thread_([this] { Run(); }) {}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void StallWatch::Add(std::weak_ptr<Watched> call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
}

void StallWatch::TickSoon() {
  const std::lock_guard lock(mutex_);
  soon_ = true;
  wake_.notify_all();
}

void StallWatch::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, absl::ToChronoMilliseconds(period_), [this] { return stopping_ || soon_; });
    soon_ = false;
    std::vector<std::shared_ptr<Watched>> alive;
    for (auto call = calls_.begin(); call != calls_.end();) {
      if (std::shared_ptr<Watched> strong = call->lock(); strong != nullptr) {
        alive.push_back(std::move(strong));
        ++call;
      } else {
        call = calls_.erase(call);
      }
    }
    lock.unlock();
    for (const std::shared_ptr<Watched>& call : alive) call->Tick(Now());
    alive.clear();
    lock.lock();
  }
}

}  // namespace attnd::server
