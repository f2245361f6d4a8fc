// Owned memory of the core: aligned buffers, and the scratch of a worker that is kept from unit to unit.
// Thread rule: one owner; no locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

namespace attnd {

constexpr std::size_t kBufferAlignment = 64;

// Uninitialised, aligned floats (or bytes of T). Throws std::bad_alloc, which the server turns into RESOURCE_EXHAUSTED.
template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::int64_t count)
      : data_(static_cast<T*>(
            ::operator new[](static_cast<std::size_t>(count) * sizeof(T), std::align_val_t{kBufferAlignment}))),
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
    void operator()(T* data) const { ::operator delete[](data, std::align_val_t{kBufferAlignment}); }
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
    }
    return buffer_.data();
  }

 private:
  AlignedBuffer<std::byte> buffer_;
};

}  // namespace attnd
