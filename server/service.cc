#include "server/service.h"

#include "absl/time/clock.h"
#include "server/attend.h"
#include "server/attend_stream.h"
#include "server/log.h"
#include "server/plan_info.h"
#include "server/receive.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

// Answers at once: receive, ask `answer`, encode. `answer(const Request&)` gives StatusOr<Response>.
template <typename Request, typename Answer>
grpc::ServerUnaryReactor* AnswerNow(Engine& engine, absl::string_view method, grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request, grpc::ByteBuffer* response, Answer answer) {
  const absl::Time arrived = absl::Now();
  RequestRecord record;
  record.method = method;
  record.peer = context->peer();
  record.request_bytes = static_cast<std::int64_t>(request->Length());
  record.status = CatchBadAlloc([&]() -> absl::Status {
    grpc::ByteBuffer message = *request;
    Request parsed;
    Reservation held(engine.budget.AccountOf(record.peer));
    const absl::StatusOr<RawMessage> raw = Receive(engine, message, parsed, held);
    if (!raw.ok()) return raw.status();
    if (absl::Status status = CheckKnown(parsed); !status.ok()) return status;
    const auto answered = answer(parsed);
    if (!answered.ok()) return answered.status();
    *response = EncodeMessage(*answered);
    record.reply_bytes = static_cast<std::int64_t>(response->Length());
    return absl::OkStatus();
  });
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(record.status));
  record.total = absl::Now() - arrived;
  engine.Done(record);
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* AttentionServiceImpl::Attend(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return StartAttend(engine_, context, request, response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AttentionServiceImpl::AttendStream(
    grpc::CallbackServerContext* context) {
  return StartAttendStream(engine_, context);
}

grpc::ServerUnaryReactor* AttentionServiceImpl::Plan(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return AnswerNow<v1::PlanRequest>(engine_, "Plan", context, request, response,
                                    [this](const v1::PlanRequest& parsed) { return AnswerPlan(engine_, parsed); });
}

grpc::ServerUnaryReactor* AttentionServiceImpl::Info(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return AnswerNow<v1::InfoRequest>(engine_, "Info", context, request, response, [this](const v1::InfoRequest&) {
    return absl::StatusOr<v1::InfoResponse>(AnswerInfo(engine_));
  });
}

}  // namespace attnd::server
