// Whether this server would answer: a tiny attention, computed for real and compared with its closed form.
//
// It goes through the compute pool ahead of everyone's queue and needs nothing of the budget, so a server that is full
// of work is ready: taking it out of a pool for that would only move its load to the others. It is not ready while it
// drains, or when the pool does not compute, or computes wrongly. Thread rule: Check from any thread but a worker.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine.h"

namespace attnd::server {

// What the pool may take for it, however busy it is.
constexpr absl::Duration kReadinessMax = absl::Seconds(3);

class Readiness {
 public:
  // Allocates what every check uses.
  explicit Readiness(Engine& engine);

  // OK, or UNAVAILABLE with the reason. Checks that come while one is under way share its outcome.
  absl::Status Check();

 private:
  struct Probe;
  Engine& engine_;
  const std::shared_ptr<Probe> probe_;  // its job may outlive a check that did not wait for it
};

}  // namespace attnd::server
