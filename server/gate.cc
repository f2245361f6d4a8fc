#include "server/gate.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/support/time.h>

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "attnd/v1/attention.pb.h"
#include "core/clock.h"
#include "server/attend.h"
#include "server/attend_stream.h"
#include "server/inference/infer.h"
#include "server/inference/models.h"
#include "server/plan_info.h"
#include "server/reflection.h"
#include "server/store_calls.h"
#include "server/trace.h"
#include "server/weight_set_calls.h"

namespace attnd::server {
namespace {

absl::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

// The metadata's first value of this name; empty without.
absl::string_view Metadata(const CallContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  return found == context.client_metadata().end() ? absl::string_view() : View(found->second);
}

absl::Time DeadlineOf(const CallContext& context) {
  // As gRPC has it, by a clock that does not jump; its deadline() is by the time of day.
  const gpr_timespec deadline = context.raw_deadline();
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return absl::InfiniteFuture();
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  return Now() + absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
}

}  // namespace

Gate::Gate(Engine& engine, Access& access, Health& health, bool tls)
    : engine_(engine), access_(access), health_(health), tls_(tls) {}

const std::vector<Gate::Method>& Gate::Methods() {
  static const std::vector<Method>* const methods = new std::vector<Method>{
      {"attnd.v1.AttentionService/Attend", "Attend", &Gate::Start<&StartAttend>},
      {"attnd.v1.AttentionService/AttendStream", "AttendStream", &Gate::Start<&StartAttendStream>},
      {"attnd.v1.AttentionService/Plan", "Plan", &Gate::Plan},
      {"attnd.v1.AttentionService/Info", "Info", &Gate::Answer<&AnswerInfo>},
      {"attnd.v1.StoreService/PutTensor", "PutTensor", &Gate::Start<&StartPutTensor>},
      {"attnd.v1.StoreService/AppendTensors", "AppendTensors", &Gate::Start<&StartAppendTensors>},
      {"attnd.v1.StoreService/GetTensor", "GetTensor", &Gate::Start<&StartGetTensor>},
      {"attnd.v1.StoreService/ListTensors", "ListTensors", &Gate::Start<&StartListTensors>},
      {"attnd.v1.StoreService/DeleteTensor", "DeleteTensor", &Gate::Start<&StartDeleteTensor>},
      {"inference.GRPCInferenceService/ServerLive", "ServerLive", &Gate::Answer<&AnswerServerLive>},
      {"inference.GRPCInferenceService/ServerReady", "ServerReady", &Gate::Answer<&AnswerServerReady>},
      {"inference.GRPCInferenceService/ModelReady", "ModelReady", &Gate::Answer<&AnswerModelReady>},
      {"inference.GRPCInferenceService/ServerMetadata", "ServerMetadata", &Gate::Answer<&AnswerServerMetadata>},
      {"inference.GRPCInferenceService/ModelMetadata", "ModelMetadata", &Gate::Answer<&AnswerModelMetadata>},
      {"inference.GRPCInferenceService/ModelInfer", "ModelInfer", &Gate::Start<&StartModelInfer>},
      {"inference.GRPCInferenceService/ModelStreamInfer", "ModelStreamInfer", &Gate::Start<&StartModelStreamInfer>},
      {"inference.GRPCInferenceService/ModelConfig", "ModelConfig", &Gate::Answer<&AnswerModelConfig>},
      {"inference.GRPCInferenceService/ModelStatistics", "ModelStatistics", &Gate::Answer<&AnswerModelStatistics>},
      {"inference.GRPCInferenceService/RepositoryIndex", "RepositoryIndex", &Gate::Answer<&AnswerRepositoryIndex>},
      {"attnd.v1.StoreService/PutWeightSet", "PutWeightSet", &Gate::Start<&StartPutWeightSet>},
      {"attnd.v1.StoreService/GetWeightSet", "GetWeightSet", &Gate::Answer<&AnswerGetWeightSet>},
      {"attnd.v1.StoreService/ListWeightSets", "ListWeightSets", &Gate::Answer<&AnswerListWeightSets>},
      {"attnd.v1.StoreService/DeleteWeightSet", "DeleteWeightSet", &Gate::Start<&StartDeleteWeightSet>},
      {"grpc.health.v1.Health/Check", "Check", &Gate::HealthCheck},
      {"grpc.health.v1.Health/Watch", "Watch", &Gate::HealthWatch},
      {"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "ServerReflectionInfo",
       &Gate::Start<&StartReflection>},
  };
  return *methods;
}

Credentials Gate::CredentialsOf(const CallContext& context) const {
  Credentials credentials;
  absl::string_view authorization = Metadata(context, "authorization");
  // The scheme's name is written in either case.
  if (authorization.size() > 7 && absl::EqualsIgnoreCase(authorization.substr(0, 7), "Bearer ")) {
    credentials.token = DigestOf(absl::StripAsciiWhitespace(authorization.substr(7)));
  }
  if (!tls_) return credentials;
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  if (peer == nullptr || !peer->IsPeerAuthenticated()) return credentials;
  for (const char* property : {GRPC_X509_SAN_PROPERTY_NAME, GRPC_X509_CN_PROPERTY_NAME}) {
    for (const grpc::string_ref& value : peer->FindPropertyValues(property)) {
      credentials.certificates.emplace_back(value.data(), value.size());
    }
  }
  return credentials;
}

CallReactor* Gate::CreateReactor(CallContext* context) {
  CallHead head;
  head.arrived = Now();
  head.peer = context->peer();
  head.deadline = DeadlineOf(*context);
  engine_.connections.CountCall(head.peer);
  head.method = "other";
  head.request_id = RequestIdFrom(Metadata(*context, "x-request-id"));
  // As trailing metadata: an answer with headers of its own would not be one of trailers only, by which a balancer
  // knows that nothing was begun and that another server may be asked.
  context->AddTrailingMetadata("x-request-id", head.request_id);
  if (const absl::string_view traceparent = Metadata(*context, "traceparent"); IsTraceparent(traceparent)) {
    head.traceparent = std::string(traceparent);
    context->AddTrailingMetadata("traceparent", head.traceparent);
  }
  const auto refuse = [&](absl::Status status) {
    RequestRecord record = head.Record();
    record.status = std::move(status);
    return RefuseCall(engine_, std::move(record));
  };
  const absl::string_view full_name = absl::StripPrefix(context->method(), "/");
  const Method* method = nullptr;
  for (const Method& known : Methods()) {
    if (known.full_name == full_name) method = &known;
  }
  if (method != nullptr && method->start == &Gate::Start<&StartReflection> && !engine_.config.reflection)
    method = nullptr;
  if (method != nullptr) head.method = method->name;
  absl::StatusOr<Caller> caller = access_.Identify(CredentialsOf(*context), full_name);
  if (!caller.ok()) return refuse(caller.status());
  head.caller = *std::move(caller);
  if (method == nullptr) return refuse(absl::UnimplementedError("no such method on this server"));
  absl::StatusOr<OpenCalls::Place> place = engine_.open_calls.Enter(head.peer, method->start == &Gate::HealthCheck);
  if (!place.ok()) {
    // Who keeps to HTTP/2's bound of streams never fills its connection, but by resets that are faster than their ends.
    if (engine_.open_calls.IsFull(head.peer)) CountUnread(engine_, head);
    return refuse(place.status());
  }
  head.place = *std::move(place);
  absl::StatusOr<Pass> pass = head.caller.Enter();
  if (!pass.ok()) return refuse(pass.status());
  head.pass = *std::move(pass);
  return (this->*method->start)(context, std::move(head));
}

CallReactor* Gate::Plan(CallContext* context, CallHead head) {
  auto answer = [this, owner = head.caller.name()](const v1::PlanRequest& request) {
    return AnswerPlan(engine_, request, owner);
  };
  return StartSmallCall<v1::PlanRequest>(engine_, context, std::move(head), std::move(answer));
}

CallReactor* Gate::HealthCheck(CallContext* context, CallHead head) {
  using grpc::health::v1::HealthCheckRequest;
  return StartSmallCall<HealthCheckRequest>(
      engine_, context, std::move(head), [this](const HealthCheckRequest& request) { return health_.Check(request); });
}

CallReactor* Gate::HealthWatch(CallContext* context, CallHead head) {
  return health_.StartWatch(engine_, context, std::move(head));
}

}  // namespace attnd::server
