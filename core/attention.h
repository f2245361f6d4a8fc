// The main path: plan a validated problem as phases of units, run them on the executor, hand finished rows to a sink.
//
//   project (x only) -> pack K, V -> attend: one unit a (sequence, head, query tile) -> emit weights and scores ->
//   project out
//
// Each row's bytes depend on its own sequence's values, lengths and options, never on the batch, the threads or the
// sink. Thread rule: StartAttention may be called from any thread; sinks are called from worker threads, several at
// once for different rows, or, for a small problem, from the calling thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/arrival.h"
#include "core/executor.h"
#include "core/problem.h"
#include "core/row_sink.h"

namespace attnd {

struct AttentionReport : JobReport {
  std::int64_t nonfinite_rows = 0;
  std::int64_t tiles = 0;      // query tiles times key tiles over all heads; 0 in reference mode
  std::int64_t tiles_run = 0;  // of these; others were excluded whole, or not reached before a stop
  // Blocks of weights that were multiplied with rows of other problems too (core/projection_share.h).
  std::int64_t weight_blocks_shared = 0;
};

// Runs the problem, as one of the jobs of job_class.client and at that weight (the rest of job_class is found here);
// `done` is called exactly once: from a worker, or, where the work is too small to be worth handing over, from the
// calling thread before this returns. The problem (its bytes too), and the sink must live until then. The returned job
// is for Executor::Wake; null when `done` was called already. With `arrived`, which lives as long as the problem, q, k,
// v and x may still be coming: what has its bytes runs, and Wake says that more came. Not for reference mode. Throws
// std::bad_alloc, then without `done`.
std::shared_ptr<Job> StartAttention(std::shared_ptr<const Problem> problem, RowSink& sink, Executor& executor,
                                    std::shared_ptr<CancelToken> cancel,
                                    std::function<void(const AttentionReport&)> done, JobClass job_class = {},
                                    const Arrived* arrived = nullptr);

// One output of Attend as bytes in reply order.
struct DenseAnswer {
  std::vector<std::vector<std::byte>> tensors;  // by OutputKind's number; empty when not wanted
  std::int64_t nonfinite_rows = 0;
  absl::Duration worked;  // CPU time of all workers
};

// Runs the problem and waits: for tests, benchmarks and embedding.
absl::StatusOr<DenseAnswer> Attend(const Problem& problem, Executor& executor);

// Bytes of scratch that one worker holds for this problem; not a function of Nq or Nk.
std::int64_t ScratchBytesPerThread(const Problem& problem);

}  // namespace attnd
