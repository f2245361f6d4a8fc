// A closed loop of calls: each of several workers asks again as soon as its answer is there.
// Thread rule: RunLoad starts and joins its own threads.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/flags.h"
#include "client/cli/histogram.h"

namespace attnd::client {

struct LoadOptions {
  std::int64_t concurrency = 1;
  absl::Duration duration = absl::Seconds(5);
  bool stream = false;              // one open stream a worker, one problem after another
  std::int64_t warm_up_calls = 1;   // of each worker, which do not count
  std::optional<DType> wire_dtype;  // every call converts on its own, as a caller with other arrays would
};

struct LoadResult {
  double seconds = 0;         // from the first counted call's start to the last one's end
  std::int64_t requests = 0;  // answered
  std::int64_t refused = 0;   // RESOURCE_EXHAUSTED: the server protects itself
  std::map<absl::StatusCode, std::int64_t> failed;
  absl::Status first_failure;                 // OK when nothing failed
  Histogram latency_ns, compute_us;           // of the answered
  double flops = 0, bytes = 0, queue_us = 0;  // sums over the answered; bytes of tensors, as they travel
  void Merge(const LoadResult& other);
};

// Every worker has a connection of its own and makes at least one call that counts. An error only when a worker cannot
// connect.
absl::StatusOr<LoadResult> RunLoad(const ServerFlags& server, const Problem& problem, const LoadOptions& options);

}  // namespace attnd::client
