// Blocks of memory that keep their pages from one buffer to the next: fresh pages cost more than copying into them.
//
// A block that is given back is kept while all kept blocks together are at most bytes_max (the oldest leaves first),
// and until ReleaseOlderThan finds that nobody took it. Sizes are rounded up by at most an eighth, so that a block fits
// buffers of about its size; of a block that is taken no page beyond the buffer is resident, whatever it held before.
// Thread rule: every function from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"

namespace attnd {

class BufferPool {
 public:
  // The one that buffers of at least kPooledBytesMin use. It keeps nothing until it is told how much.
  static BufferPool& Global();

  BufferPool() = default;
  ~BufferPool() { SetBytesMax(0); }
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  void SetBytesMax(std::int64_t bytes_max);

  // Uninitialised, at the start of a page; bytes > 0. Throws std::bad_alloc.
  void* Take(std::size_t bytes);
  // `bytes` as in Take.
  void Give(void* block, std::size_t bytes, absl::Time now = Now()) noexcept;

  // Returns to the system what was given back before `since`.
  void ReleaseOlderThan(absl::Time since);

  std::int64_t bytes_kept() const;

  // What a buffer of `bytes` takes.
  static std::size_t BlockBytes(std::size_t bytes);

 private:
  struct Kept {
    void* block;
    std::size_t bytes;
    std::size_t touched;  // whole pages from its start; those behind are not resident
    absl::Time given;
  };
  using KeptList = std::list<Kept>;

  // Moves the oldest out while `leaves` says so.
  template <typename Leaves>
  KeptList TakeOldestLocked(Leaves leaves);

  mutable std::mutex mutex_;
  std::int64_t bytes_max_ = 0, bytes_kept_ = 0;
  KeptList kept_;                                                   // the oldest first
  std::map<std::size_t, std::vector<KeptList::iterator>> by_size_;  // the oldest first
};

constexpr std::size_t kPooledBytesMin = std::size_t{256} << 10;  // the allocator is as fast below

}  // namespace attnd
