// Owned memory of the core: aligned buffers, and the scratch of a worker that is kept from unit to unit.
// Thread rule: one owner; no locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "core/buffer_pool.h"
#include "core/poison.h"

namespace attnd {

constexpr std::size_t kBufferAlignment = 64;

inline void* AllocateBuffer(std::size_t bytes) {
  void* const data = bytes >= kPooledBytesMin ? BufferPool::Global().Take(bytes)
                                              : ::operator new[](bytes, std::align_val_t{kBufferAlignment});
  Poison(data, bytes);
  return data;
}

inline void FreeBuffer(void* data, std::size_t bytes) noexcept {
  Poison(data, bytes);
  if (bytes >= kPooledBytesMin) return BufferPool::Global().Give(data, bytes);
  ::operator delete[](data, std::align_val_t{kBufferAlignment});
}

// Uninitialised, aligned floats (or bytes of T); large ones are blocks of the pool. Throws std::bad_alloc, which the
// server turns into RESOURCE_EXHAUSTED.
template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::int64_t count)
      : data_(static_cast<T*>(AllocateBuffer(static_cast<std::size_t>(count) * sizeof(T))),
              Free{static_cast<std::size_t>(count) * sizeof(T)}),
        count_(count) {}

  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::move(other.data_)), count_(std::exchange(other.count_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    count_ = std::exchange(other.count_, 0);
    return *this;
  }

  T* data() const { return data_.get(); }
  std::int64_t count() const { return count_; }

 private:
  struct Free {
    std::size_t bytes = 0;
    void operator()(T* data) const { FreeBuffer(data, bytes); }
  };
  std::unique_ptr<T[], Free> data_;
  std::int64_t count_ = 0;
};

// Grows to what a unit asks for and stays; contents do not survive Reserve.
class Scratch {
 public:
  std::byte* Reserve(std::int64_t bytes) {
    if (bytes > buffer_.count()) {
      buffer_ = AlignedBuffer<std::byte>();
      buffer_ = AlignedBuffer<std::byte>(bytes);
    } else if (bytes > 0) {
      Poison(buffer_.data(), static_cast<std::size_t>(bytes));
    }
    return buffer_.data();
  }

 private:
  AlignedBuffer<std::byte> buffer_;
};

}  // namespace attnd
