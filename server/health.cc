#include "server/health.h"

#include <string>
#include <utility>

#include "core/clock.h"
#include "server/receive.h"
#include "server/wire/encode.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

bool Known(const std::string& service) { return service.empty() || service == "attnd.v1.AttentionService"; }

}  // namespace

// One Watch: once its question came it says the state, and once more when a drain begins, and ends then.
class HealthWatch final : public CallReactor, public std::enable_shared_from_this<HealthWatch> {
 public:
  HealthWatch(Health& health, Engine& engine, CallHead head)
      : health_(health), engine_(engine), head_(std::move(head)) {}

  void Begin(bool draining) {
    const std::lock_guard lock(mutex_);
    ending_ = draining;
    StartRead(&request_);
  }

  void BeginDrain() {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    ending_ = true;
    if (asked_ && !writing_) Say();
    if (!asked_) End(Draining());
  }

  void OnReadDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    HealthCheckRequest request;
    Reservation held(head_.AccountIn(engine_));
    const absl::Status status =
        ok ? Receive(engine_, request_, request, held).status() : absl::InvalidArgumentError("request: absent");
    if (!status.ok()) return End(status);
    asked_ = true;
    known_ = Known(request.service());
    Say();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) return End(absl::CancelledError("the caller went away"));
    if (!ending_) return;
    if (said_end_) return End(Draining());
    Say();
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    if (!writing_) End(absl::CancelledError("the caller went away"));
    ending_ = said_end_ = true;
  }

  void OnDone() override {
    RequestRecord record = head_.Record();
    record.status = status_;
    record.total = Now() - head_.arrived;
    engine_.Done(record);
    std::shared_ptr<HealthWatch> self = shared_from_this();
    const std::lock_guard lock(health_.mutex_);
    health_.watches_.erase(self);
  }

 private:
  void Say() {
    HealthCheckResponse response;
    response.set_status(!known_   ? HealthCheckResponse::SERVICE_UNKNOWN
                        : ending_ ? HealthCheckResponse::NOT_SERVING
                                  : HealthCheckResponse::SERVING);
    response_ = EncodeMessage(response);
    said_end_ = ending_;
    writing_ = true;
    StartWrite(&response_);
  }

  void End(const absl::Status& status) {
    if (finished_) return;
    finished_ = true;
    status_ = status;
    Finish(ToGrpcStatus(status));
  }

  Health& health_;
  Engine& engine_;
  const CallHead head_;
  std::mutex mutex_;
  grpc::ByteBuffer request_, response_;
  absl::Status status_;
  bool known_ = false, asked_ = false, writing_ = false, ending_ = false, said_end_ = false, finished_ = false;
};

absl::StatusOr<HealthCheckResponse> Health::Check(const HealthCheckRequest& request) {
  if (!Known(request.service())) {
    return absl::NotFoundError("service: unknown, expected \"\" or \"attnd.v1.AttentionService\"");
  }
  HealthCheckResponse response;
  const std::lock_guard lock(mutex_);
  response.set_status(draining_ ? HealthCheckResponse::NOT_SERVING : HealthCheckResponse::SERVING);
  return response;
}

CallReactor* Health::StartWatch(Engine& engine, CallContext*, CallHead head) {
  auto watch = std::make_shared<HealthWatch>(*this, engine, std::move(head));
  const std::lock_guard lock(mutex_);
  watches_.insert(watch);
  watch->Begin(draining_);
  return watch.get();
}

void Health::BeginDrain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  for (const std::shared_ptr<HealthWatch>& watch : watches_) watch->BeginDrain();
}

}  // namespace attnd::server
