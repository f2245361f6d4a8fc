#include "server/self_probe.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/log.h"

namespace attnd::server {
namespace {

constexpr auto kCallLimit = std::chrono::seconds(10);

}  // namespace

std::string ReachableAddress(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return address;
  const std::size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon), port = address.substr(colon);
  if (host == "0.0.0.0") return absl::StrCat("127.0.0.1", port);
  if (host == "[::]" || host == "::") return absl::StrCat("[::1]", port);
  return address;
}

SelfProbe::SelfProbe(ProbeTarget target, absl::Duration period, std::function<std::int64_t()> turned_away,
                     std::function<void()> give_up)
    : target_(std::move(target)),
      period_(period),
      turned_away_(std::move(turned_away)),
      give_up_(std::move(give_up)),
      thread_([this] { Run(); }) {}

void SelfProbe::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (calling_ != nullptr) calling_->TryCancel();
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool SelfProbe::Reached() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto stub =
      grpc::health::v1::Health::NewStub(grpc::CreateCustomChannel(target_.address, target_.credentials, arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
  context.set_wait_for_ready(false);
  context.AddMetadata("authorization", absl::StrCat("Bearer ", target_.token));
  grpc::health::v1::HealthCheckResponse response;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return true;
    calling_ = &context;
  }
  const grpc::Status status = stub->Check(&context, {}, &response);
  {
    const std::lock_guard lock(mutex_);
    calling_ = nullptr;
    if (stopping_) return true;
  }
  if (!status.ok()) {
    Log(LogLevel::kWarning, "self-probe failed",
        {{"code", static_cast<std::int64_t>(status.error_code())}, {"error", status.error_message()}});
  }
  return status.ok();
}

void SelfProbe::Run() {
  std::unique_lock lock(mutex_);
  for (int failures = 0;;) {
    wake_.wait_for(lock, absl::ToChronoMilliseconds(period_), [this] { return stopping_; });
    if (stopping_) return;
    lock.unlock();
    const std::int64_t before = turned_away_();
    if (Reached()) {
      failures = 0;
    } else if (turned_away_() == before) {
      ++failures;
    }
    if (failures == kFailuresMax) {
      Log(LogLevel::kError, "nobody reaches this server any more: ending the process");
      give_up_();
    }
    lock.lock();
  }
}

}  // namespace attnd::server
