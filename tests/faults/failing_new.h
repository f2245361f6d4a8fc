// An operator new that counts, and fails where it is told. Include once in a binary: it replaces the library's own.
// Thread rule: armed and read by one thread, while allocations of any thread count.
#pragma once

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace attnd {

inline std::atomic<std::int64_t> allocations{0};
// Of those counted, the first to fail and how many do.
inline std::atomic<std::int64_t> fail_from{std::numeric_limits<std::int64_t>::max()}, fail_count{0};

// While it lives the n-th allocation from here on fails, and the `count - 1` after it.
class FailingAllocation {
 public:
  explicit FailingAllocation(std::int64_t n, std::int64_t count = 1) : before_(allocations) {
    fail_count = count;
    fail_from = before_ + n;
  }
  ~FailingAllocation() { fail_from = std::numeric_limits<std::int64_t>::max(); }
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  // Whether any has failed yet.
  bool HasFailed() const { return allocations >= fail_from; }

 private:
  const std::int64_t before_;
};

inline void* Allocate(std::size_t bytes, std::size_t alignment) {
  const std::int64_t number = ++allocations, from = fail_from;
  if (number >= from && number - from < fail_count) throw std::bad_alloc();
  void* const block = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

// Not inlined, lest the compiler believe that new and free are mismatched.
[[gnu::noinline]] inline void Release(void* block) { std::free(block); }

}  // namespace attnd

void* operator new(std::size_t bytes) { return attnd::Allocate(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return attnd::Allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return attnd::Allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return attnd::Allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { attnd::Release(block); }
void operator delete[](void* block) noexcept { attnd::Release(block); }
void operator delete(void* block, std::size_t) noexcept { attnd::Release(block); }
void operator delete[](void* block, std::size_t) noexcept { attnd::Release(block); }
void operator delete(void* block, std::align_val_t) noexcept { attnd::Release(block); }
void operator delete[](void* block, std::align_val_t) noexcept { attnd::Release(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { attnd::Release(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { attnd::Release(block); }
