// The one gate in front of every method of the port: a generic service that sees each call when its headers have come,
// asks who it is, and hands it to its method or refuses it. gRPC reads no message before that.
// Thread rule: called by gRPC's threads.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/call.h"
#include "server/health.h"

namespace attnd::server {

class Gate final : public grpc::CallbackGenericService {
 public:
  // `tls`: connections may bring client certificates.
  Gate(Engine& engine, Access& access, Health& health, bool tls);

  CallReactor* CreateReactor(CallContext* context) override;

 private:
  struct Method {
    absl::string_view full_name;  // "package.Service/Method"
    absl::string_view name;       // in the log
    CallReactor* (Gate::*start)(CallContext*, CallHead);
  };
  static const std::vector<Method>& Methods();

  // What needs no more than the engine.
  template <CallReactor* (*kStart)(Engine&, CallContext*, CallHead)>
  CallReactor* Start(CallContext* context, CallHead head) {
    return kStart(engine_, context, std::move(head));
  }
  CallReactor* Plan(CallContext* context, CallHead head);
  CallReactor* Info(CallContext* context, CallHead head);
  CallReactor* ServerLive(CallContext* context, CallHead head);
  CallReactor* ServerReady(CallContext* context, CallHead head);
  CallReactor* ModelReady(CallContext* context, CallHead head);
  CallReactor* ServerMetadata(CallContext* context, CallHead head);
  CallReactor* ModelMetadata(CallContext* context, CallHead head);
  CallReactor* ModelInfer(CallContext* context, CallHead head);
  CallReactor* ModelStreamInfer(CallContext* context, CallHead head);
  CallReactor* ModelConfig(CallContext* context, CallHead head);
  CallReactor* ModelStatistics(CallContext* context, CallHead head);
  CallReactor* RepositoryIndex(CallContext* context, CallHead head);
  CallReactor* PutWeightSet(CallContext* context, CallHead head);
  CallReactor* GetWeightSet(CallContext* context, CallHead head);
  CallReactor* ListWeightSets(CallContext* context, CallHead head);
  CallReactor* DeleteWeightSet(CallContext* context, CallHead head);
  CallReactor* HealthCheck(CallContext* context, CallHead head);
  CallReactor* HealthWatch(CallContext* context, CallHead head);

  Credentials CredentialsOf(const CallContext& context) const;

  Engine& engine_;
  Access& access_;
  Health& health_;
  const bool tls_;
};

}  // namespace attnd::server
