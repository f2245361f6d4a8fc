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
#include "server/small_call.h"

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
  // What is answered at once by `kAnswer(engine, request)`, which gives StatusOr<Response>.
  template <auto kAnswer>
  CallReactor* Answer(CallContext* context, CallHead head) {
    return StartAnswer(kAnswer, context, std::move(head));
  }
  template <typename Response, typename Request>
  CallReactor* StartAnswer(absl::StatusOr<Response> (*answer)(const Engine&, const Request&), CallContext* context,
                           CallHead head) {
    return StartSmallCall<Request>(engine_, context, std::move(head),
                                   [this, answer](const Request& request) { return answer(engine_, request); });
  }
  CallReactor* Plan(CallContext* context, CallHead head);
  CallReactor* HealthCheck(CallContext* context, CallHead head);
  CallReactor* HealthWatch(CallContext* context, CallHead head);

  Credentials CredentialsOf(const CallContext& context) const;

  Engine& engine_;
  Access& access_;
  Health& health_;
  const bool tls_;
};

}  // namespace attnd::server
