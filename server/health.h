// grpc.health.v1, on callbacks: Check and Watch for the whole server ("") and for attnd.v1.AttentionService.
// Thread rule: every function from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"

namespace attnd::server {

class HealthWatch;

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request) override;

  // NOT_SERVING from here on, for ever: every open Watch is told and ended.
  void BeginDrain();

 private:
  friend class HealthWatch;
  std::mutex mutex_;
  bool draining_ = false;
  std::set<std::shared_ptr<HealthWatch>> watches_;
};

}  // namespace attnd::server
