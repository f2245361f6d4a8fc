#include "server/health.h"

#include <utility>

#include "server/lifecycle.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

bool Known(const std::string& service) { return service.empty() || service == "attnd.v1.AttentionService"; }

}  // namespace

// One open Watch: says the state, and once more when a drain begins, and ends then.
class HealthWatch final : public grpc::ServerWriteReactor<HealthCheckResponse>,
                          public std::enable_shared_from_this<HealthWatch> {
 public:
  HealthWatch(HealthService& service, bool known) : service_(service), known_(known) {}

  void Begin(bool draining) {
    const std::lock_guard lock(mutex_);
    ending_ = draining;
    Say();
  }

  void BeginDrain() {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    ending_ = true;
    if (!writing_) Say();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) return End(grpc::Status::CANCELLED);
    if (!ending_) return;
    if (said_end_) return End(ToGrpcStatus(Draining()));
    Say();
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    if (!writing_) End(grpc::Status::CANCELLED);
    ending_ = said_end_ = true;
  }

  void OnDone() override {
    std::shared_ptr<HealthWatch> self = shared_from_this();
    const std::lock_guard lock(service_.mutex_);
    service_.watches_.erase(self);
  }

 private:
  void Say() {
    response_.set_status(!known_   ? HealthCheckResponse::SERVICE_UNKNOWN
                         : ending_ ? HealthCheckResponse::NOT_SERVING
                                   : HealthCheckResponse::SERVING);
    said_end_ = ending_;
    writing_ = true;
    StartWrite(&response_);
  }

  void End(const grpc::Status& status) {
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  HealthService& service_;
  const bool known_;
  std::mutex mutex_;
  HealthCheckResponse response_;
  bool writing_ = false, ending_ = false, said_end_ = false, finished_ = false;
};

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context, const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!Known(request->service())) {
    reactor->Finish(
        grpc::Status(grpc::StatusCode::NOT_FOUND, "service: unknown, expected \"\" or \"attnd.v1.AttentionService\""));
    return reactor;
  }
  {
    const std::lock_guard lock(mutex_);
    response->set_status(draining_ ? HealthCheckResponse::NOT_SERVING : HealthCheckResponse::SERVING);
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(grpc::CallbackServerContext*,
                                                                    const HealthCheckRequest* request) {
  auto watch = std::make_shared<HealthWatch>(*this, Known(request->service()));
  const std::lock_guard lock(mutex_);
  watches_.insert(watch);
  watch->Begin(draining_);
  return watch.get();
}

void HealthService::BeginDrain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  for (const std::shared_ptr<HealthWatch>& watch : watches_) watch->BeginDrain();
}

}  // namespace attnd::server
