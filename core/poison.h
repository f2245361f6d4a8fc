// What builds for tests write over memory that is handed out or given back, so that whatever of it reaches an answer
// would show: all bits set, a NaN in every floating-point type, -1 in every integer, and no bool at all.
// Thread rule: pure function on the caller's memory.
#pragma once

#include <cstddef>
#include <cstring>

namespace attnd {

#ifdef ATTND_POISON
constexpr bool kPoisons = true;
#else
constexpr bool kPoisons = false;
#endif
constexpr unsigned char kPoison = 0xff;

inline void Poison(void* data, std::size_t bytes) noexcept {
  if constexpr (kPoisons) std::memset(data, kPoison, bytes);
}

}  // namespace attnd
