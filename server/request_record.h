// What became of a request: one call, or one problem of a stream. Its line in the log and its share of the metrics are
// both made from it. Thread rule: plain data.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace attnd::server {

// How a caller proved who it is. A closed set: metrics have it as a label.
enum class IdentityClass { kAnonymous, kToken, kCertificate };

struct RequestRecord {
  absl::string_view method;  // "Attend", ...; "other" for what this server does not have
  std::string peer;
  IdentityClass identity_class = IdentityClass::kAnonymous;
  std::string identity;     // its name; empty when anonymous
  std::string request_id;   // x-request-id as it came, or made here
  std::string traceparent;  // W3C, as it came; empty without
  std::string shape;        // empty where no problem was understood
  // Of a problem that came by the Open Inference Protocol, once its model is known; empty for others.
  std::string model, model_version;
  absl::Status status;
  // From the call's headers (a problem's header) to its last byte; until computing began; computing; from then until
  // gRPC had taken the whole answer; from the last byte to the end.
  absl::Duration received, queued, computed, sent, total;
  absl::Duration read;  // of `queued`, until its message was understood and its tensors copied; 0 on AttendStream
  std::int64_t request_bytes = 0, reply_bytes = 0;
  std::int64_t memory_bytes = 0;         // reserved for it
  absl::Duration worked;                 // of all compute threads
  std::int64_t slices = 0, threads = 0;  // turns that compute threads took at it, and how many different threads
  std::int64_t flops = 0;                // of a problem that came to computing, after exclusion
  double done = 1;                       // the part of them that was computed
  std::int64_t tiles_run = 0, tiles_skipped = 0, tiles_cancelled = 0;
  std::int64_t weight_blocks_shared = 0;  // multiplied with other problems' rows too
  absl::Duration stopped_in, given_back;  // of one that stopped early: until no thread worked at it, and what it saved
};

}  // namespace attnd::server
