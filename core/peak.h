// What this machine can do at best: the rate that shares of it are said of.
// Thread rule: call from a thread that is no worker; the work runs on the given executor's threads.
#pragma once

#include <functional>

#include "core/executor.h"

namespace attnd {

// Runs fn(worker) once on every thread of the pool at the same time; seconds until the last ended.
double RunOnAll(Executor& executor, const std::function<void(int)>& fn);

// FLOP/s of all threads together.
struct Peak {
  double by_wall_clock = 0;
  double by_cpu_time = 0;  // of each thread: a machine that is busy with other things is not slow
};

// Multiply-adds of float32 without memory, about 6 ms of them on every thread at once.
Peak FmaPeak(Executor& executor);

}  // namespace attnd
