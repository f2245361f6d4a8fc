// One load from connecting to its point of the report: warm-up, the counted time, the check of what was answered.
// Thread rule: one call at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/bench/report.h"
#include "client/cli/bench/workload.h"
#include "client/cli/cli.h"
#include "client/cli/flags.h"

namespace attnd::client {

struct LoadPlan {
  double duration_s = 5;
  std::int64_t warm_up_calls = 1;   // of each caller, or of each connection of an open loop
  std::optional<double> warm_up_s;  // under the same load; an open loop has 1 when nothing is said, a closed one 0
  std::int64_t connections = 0;     // 0: one a caller, and 4 (streams: 16) of an open loop
  std::int64_t threads = 0;         // that read answers; 0: a closed loop's are the CPUs, an open one has 1
  bool stream = false;
  bool poisson = false;
  std::int64_t in_flight_max = 4096;
  std::int64_t verify_rows = 0;
  double margin_percent = 10;
  std::string metrics;  // address of the server's page; may be empty
  std::uint64_t seed = 0;
};

// At so many requests a second, or with so many callers.
struct Load {
  std::optional<double> rate;
  std::int64_t callers = 1;
};

// What ends a command whose loads were interrupted.
absl::Status Interrupted();

// A load that is interrupted has the point of the time until then; CANCELLED when none of it counted yet.
// An error when the server cannot be reached or what it says cannot be read; calls that fail are in the point.
absl::StatusOr<Point> Measure(const ServerFlags& server, const Workload& workload, const LoadPlan& plan,
                              const Load& load, const Io& io);

// Whether at least 99 % of what was due was answered within so many microseconds.
bool WithinSlo(const Recorded& recorded, double slo_us);

}  // namespace attnd::client
