// What this machine can do at best, measured: the ceilings that benchmark rows are compared with.
// Thread rule: call from one thread; the work runs on the given executor's threads.
#pragma once

#include "core/executor.h"

namespace attnd::bench {

// Runs fn(worker) once on every thread of the pool at the same time; seconds until the last ended.
double RunOnAll(Executor& executor, const std::function<void(int)>& fn);

// Multiply-adds without memory, float32, all threads: FLOP/s.
double FmaPeak(Executor& executor);

// Sum over a buffer far larger than the caches, all threads: bytes/s.
double ReadBandwidth(Executor& executor);

}  // namespace attnd::bench
