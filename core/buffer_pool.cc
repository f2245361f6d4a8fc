#include "core/buffer_pool.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

namespace attnd {
namespace {

constexpr std::size_t kPageBytes = 4096;

std::size_t WholePages(std::size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

void* Map(std::size_t bytes) {
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  return block;
}

void Unmap(void* block, std::size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(block, bytes);
  munmap(block, bytes);
}

}  // namespace

BufferPool& BufferPool::Global() {
  static auto* pool = new BufferPool;  // outlives every buffer
  return *pool;
}

std::size_t BufferPool::BlockBytes(std::size_t bytes) {
  const std::size_t step = std::max(std::bit_floor(bytes) / 8, kPageBytes);
  return (bytes + step - 1) / step * step;
}

template <typename Leaves>
BufferPool::KeptList BufferPool::TakeOldestLocked(Leaves leaves) {
  KeptList out;
  while (!kept_.empty() && leaves(kept_.front())) {
    auto& same = by_size_[kept_.front().bytes];
    same.erase(same.begin());
    bytes_kept_ -= static_cast<std::int64_t>(kept_.front().bytes);
    out.splice(out.end(), kept_, kept_.begin());
  }
  return out;
}

void BufferPool::SetBytesMax(std::int64_t bytes_max) {
  KeptList out;
  {
    const std::lock_guard lock(mutex_);
    bytes_max_ = bytes_max;
    out = TakeOldestLocked([this](const Kept&) { return bytes_kept_ > bytes_max_; });
  }
  for (const Kept& kept : out) Unmap(kept.block, kept.bytes);
}

void* BufferPool::Take(std::size_t bytes) {
  const std::size_t size = BlockBytes(bytes), wanted = WholePages(bytes);
  void* block = nullptr;
  std::size_t touched = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto same = by_size_.find(size);
    if (same != by_size_.end() && !same->second.empty()) {
      const auto newest = same->second.back();
      same->second.pop_back();
      block = newest->block;
      touched = newest->touched;
      bytes_kept_ -= static_cast<std::int64_t>(size);
      kept_.erase(newest);
    }
  }
  if (block == nullptr) block = Map(size);
  // The larger buffer before left pages that nobody would count.
  if (touched > wanted) madvise(static_cast<std::byte*>(block) + wanted, touched - wanted, MADV_DONTNEED);
  ASAN_UNPOISON_MEMORY_REGION(block, bytes);
  ASAN_POISON_MEMORY_REGION(static_cast<std::byte*>(block) + bytes, size - bytes);
  return block;
}

void BufferPool::Give(void* block, std::size_t bytes, absl::Time now) noexcept {
  const std::size_t size = BlockBytes(bytes);
  ASAN_POISON_MEMORY_REGION(block, size);
  KeptList out;
  bool kept = false;
  try {
    KeptList in = {{block, size, WholePages(bytes), now}};
    const std::lock_guard lock(mutex_);
    if (static_cast<std::int64_t>(size) <= bytes_max_) {
      by_size_[size].push_back(in.begin());
      kept_.splice(kept_.end(), in);
      bytes_kept_ += static_cast<std::int64_t>(size);
      kept = true;
      out = TakeOldestLocked([this](const Kept&) { return bytes_kept_ > bytes_max_; });
    }
  } catch (const std::bad_alloc&) {  // no memory to note that it is kept
  }
  if (!kept) Unmap(block, size);
  for (const Kept& leaving : out) Unmap(leaving.block, leaving.bytes);
}

void BufferPool::ReleaseOlderThan(absl::Time since) {
  KeptList out;
  {
    const std::lock_guard lock(mutex_);
    out = TakeOldestLocked([since](const Kept& kept) { return kept.given < since; });
  }
  for (const Kept& kept : out) Unmap(kept.block, kept.bytes);
}

std::int64_t BufferPool::bytes_kept() const {
  const std::lock_guard lock(mutex_);
  return bytes_kept_;
}

}  // namespace attnd
