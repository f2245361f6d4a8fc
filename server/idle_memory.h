// Returns memory to the system when nobody has needed it for a while: blocks of the pool, each by its own age, and what
// the allocator keeps, once no reservation has changed for as long.
// Thread rule: Tick from the stall watch.
#pragma once

#include <functional>

#include "core/buffer_pool.h"
#include "server/budget.h"
#include "server/stall_watch.h"

namespace attnd::server {

constexpr absl::Duration kMemoryIdle = absl::Seconds(5);

class IdleMemory final : public Watched {
 public:
  IdleMemory(BufferPool& pool, const Budget& budget, std::function<void()> trim_allocator);

  void Tick(absl::Time now) override;

 private:
  BufferPool& pool_;
  const Budget& budget_;
  const std::function<void()> trim_allocator_;
  std::int64_t changes_ = -1;
  absl::Time quiet_since_;
  bool trimmed_ = false;
};

}  // namespace attnd::server
