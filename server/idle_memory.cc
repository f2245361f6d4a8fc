#include "server/idle_memory.h"

#include <utility>

namespace attnd::server {

IdleMemory::IdleMemory(BufferPool& pool, const Budget& budget, std::function<void()> trim_allocator)
    : pool_(pool), budget_(budget), trim_allocator_(std::move(trim_allocator)) {}

void IdleMemory::Tick(absl::Time now) {
  pool_.ReleaseOlderThan(now - kMemoryIdle);
  if (const std::int64_t changes = budget_.changes(); changes != changes_) {
    changes_ = changes;
    quiet_since_ = now;
    trimmed_ = false;
  }
  if (trimmed_ || now - quiet_since_ < kMemoryIdle) return;
  trim_allocator_();
  trimmed_ = true;
}

}  // namespace attnd::server
