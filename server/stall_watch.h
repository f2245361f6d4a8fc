// The one timer of the server: looks at every open call a few times a second, so that a peer that stopped reading or
// sending, or a deadline that passed while a job was held back, is noticed.
// Thread rule: every function from any thread. Ticks run on one thread of its own.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/time/time.h"

namespace attnd::server {

class Watched {
 public:
  virtual ~Watched() = default;
  virtual void Tick(absl::Time now) = 0;
};

class StallWatch {
 public:
  explicit StallWatch(absl::Duration period);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // Watched until it is destroyed.
  void Add(std::weak_ptr<Watched> call);
  // Looks now instead of at the next tick.
  void TickSoon();

 private:
  void Run();

  const absl::Duration period_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false, soon_ = false;
  std::list<std::weak_ptr<Watched>> calls_;
  std::thread thread_;
};

}  // namespace attnd::server
