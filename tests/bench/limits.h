// What this machine can do at best, measured: the ceilings that benchmark rows are compared with.
// Thread rule: call from one thread; the work runs on the given executor's threads.
#pragma once

#include "core/executor.h"

namespace attnd::bench {

// Sum over a buffer far larger than the caches, all threads: bytes/s.
double ReadBandwidth(Executor& executor);

}  // namespace attnd::bench
