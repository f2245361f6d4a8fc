// grpc.health.v1: Check and Watch for the whole server ("") and for attnd.v1.AttentionService.
// Thread rule: every function from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <set>

#include "absl/status/statusor.h"
#include "grpc/health/v1/health.pb.h"
#include "server/call.h"

namespace attnd::server {

class HealthWatch;

class Health {
 public:
  absl::StatusOr<grpc::health::v1::HealthCheckResponse> Check(const grpc::health::v1::HealthCheckRequest& request);

  CallReactor* StartWatch(Engine& engine, CallContext* context, CallHead head);

  // NOT_SERVING from here on, for ever: every open Watch is told and ended.
  void BeginDrain();

 private:
  friend class HealthWatch;
  std::mutex mutex_;
  bool draining_ = false;
  std::set<std::shared_ptr<HealthWatch>> watches_;
};

}  // namespace attnd::server
