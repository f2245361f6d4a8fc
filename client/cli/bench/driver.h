// Sends requests over many connections from few threads, and times them: gRPC's completion queues, one a thread, over
// messages that are encoded once. A schedule or a number of callers decides when.
// Thread rule: one call at a time; a Driver has threads of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/cli/bench/arrivals.h"
#include "client/cli/bench/pacer.h"
#include "client/cli/bench/recorder.h"
#include "client/cli/bench/workload.h"

namespace attnd::client {

struct DriverOptions {
  std::int64_t connections = 1;
  std::int64_t threads = 1;           // that read answers
  bool stream = false;                // one AttendStream a connection, instead of a call a problem
  std::int64_t in_flight_max = 4096;  // requests of an open loop that wait for their answers at once
  std::uint64_t seed = 0;
};

// CPU that the threads of the load took, as shares of one CPU over the time measured.
struct OwnCpu {
  double busiest_thread = 0;
  double process = 0;
};

class Driver {
 public:
  // Connects all. An error when one cannot be.
  static absl::StatusOr<std::unique_ptr<Driver>> Connect(const ServerFlags& server, const Workload& workload,
                                                         const DriverOptions& options);
  virtual ~Driver() = default;

  // An open loop from now until the recorder's end; returns when the last answer is there or its deadline is over.
  virtual OwnCpu RunOpen(const Arrivals& arrivals, Recorder& recorder) = 0;
  // So many callers on the connections in turn, each asking again when it is answered, until the recorder's end; each
  // makes at least one call that is due before it.
  virtual OwnCpu RunClosed(std::int64_t callers, Recorder& recorder) = 0;
  // So many calls of each of so many callers, which nobody counts.
  virtual void WarmUp(std::int64_t callers, std::int64_t calls) = 0;
  // A reply to each item that was answered by Attend while the load ran, in the items' order; empty where none was.
  virtual std::vector<grpc::ByteBuffer> TakeReplies() = 0;
};

}  // namespace attnd::client
