// The one door through which Highway comes in: the files that compile once a target include it, after naming themselves
// in HWY_TARGET_INCLUDE. Each is compiled once a target; targets narrower than AVX2 are left out, since attnd does not
// run there.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#endif
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
