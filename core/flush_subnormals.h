// Subnormal operands make the products about a hundred times slower, and exp gives exactly 0 below FLT_MIN anyway:
// while one of these lives, its thread takes and gives 0 instead. Thread rule: made and destroyed on one thread.
#pragma once

#include <immintrin.h>

namespace attnd {

class FlushSubnormals {
 public:
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushSubnormals() { _mm_setcsr(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const unsigned before_;
};

}  // namespace attnd
