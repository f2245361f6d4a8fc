#include "server/call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "server/log.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

class RefusedCall final : public CallReactor {
 public:
  void OnDone() override { delete this; }
};

}  // namespace

RequestRecord CallHead::Record() const {
  RequestRecord record;
  record.method = method;
  record.peer = peer;
  record.identity_class = caller.identity_class();
  record.identity = caller.name();
  record.request_id = request_id;
  record.traceparent = traceparent;
  return record;
}

std::shared_ptr<Account> CallHead::AccountIn(Engine& engine) const {
  return engine.budget.AccountOf(caller.AccountName(peer), caller.policy().bytes_in_flight_max);
}

absl::Status NotRead(const Engine& engine) {
  return absl::UnavailableError(
      absl::StrCat("the peer has not read for ", engine.config.send_stall_ms, " ms (send_stall_ms)"));
}

void CountUnread(Engine& engine, const CallHead& head) {
  if (!engine.connections.CountUnread(head.peer, Now())) return;
  Log(LogLevel::kWarning, "connection closed: it opens calls and says nothing",
      {{"peer", head.peer}, {"unread_per_second", engine.config.streams_max}});
}

UnaryCall::UnaryCall(Engine& engine, CallContext* context, CallHead head)
    : engine_(engine),
      head_(std::move(head)),
      deadline_(engine.Deadline(head_.arrived, head_.deadline)),
      record_(head_.Record()),
      row_(engine.requests, head_.method, head_.peer, head_.caller.name()),
      whole_at_(head_.arrived),
      context_(context) {}

void UnaryCall::Start() {
  keep_ = shared_from_this();
  engine_.watch.Add(weak_from_this());
  StartRead(&request_);
}

void UnaryCall::OnReadDone(bool ok) {
  bool asked = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kReading) return;  // ended while it waited
    asked_ |= ok;
    asked = asked_;
    if (asked) state_ = State::kAnswering;
    if (ok) whole_at_ = Now();
  }
  if (!asked) return EndUnread(absl::InvalidArgumentError("request: absent, expected one message"));
  if (ok) {
    record_.received = whole_at_ - head_.arrived;
    record_.request_bytes += static_cast<std::int64_t>(request_.Length());
  }
  const absl::Status status = CatchBadAlloc([&] { return ok ? Answer(request_) : AnswerEnd(); });
  if (!status.ok()) End(status);
}

void UnaryCall::ReadNext() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kAnswering) return;
  state_ = State::kReading;
  StartRead(&request_);
}

void UnaryCall::OnCancel() {
  const absl::Status reason =
      Now() >= deadline_ ? absl::DeadlineExceededError("the call's deadline passed before the answer was complete")
                         : absl::CancelledError("the caller cancelled or went away");
  EndUnread(reason);
  Stop(reason);
}

void UnaryCall::OnDone() {
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kDone;
    record_.sent = Now() - ended_at_;
  }
  if (!asked_) CountUnread(engine_, head_);
  record_.total = Now() - whole_at_;
  row_.Leave();
  engine_.Done(record_);
  Release();
  keep_.reset();  // the last act: this may be gone
}

void UnaryCall::Tick(absl::Time now) {
  bool stalled = false, silent = false;
  {
    // A peer that does not take its answer loses it.
    const std::lock_guard lock(mutex_);
    if (state_ == State::kDone) return;  // the context is gone
    stalled = state_ == State::kEnded && now - ended_at_ >= absl::Milliseconds(engine_.config.send_stall_ms);
    if (stalled) {
      record_.status.Update(NotRead(engine_));
      context_->TryCancel();
    }
    silent =
        state_ == State::kReading && asked_ && now - whole_at_ >= absl::Milliseconds(engine_.config.receive_stall_ms);
  }
  if (stalled) return;
  TickAnswering();
  if (engine_.lifecycle.draining()) {
    EndUnread(Draining());
  } else if (now >= deadline_) {
    EndUnread(absl::DeadlineExceededError("the deadline passed before the request's message was whole"));
  } else if (silent) {
    EndUnread(absl::DeadlineExceededError(
        absl::StrCat("no message for ", engine_.config.receive_stall_ms, " ms (receive_stall_ms)")));
  }
}

bool UnaryCall::EndOnce(const absl::Status& status, bool only_reading) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReading && (only_reading || state_ != State::kAnswering)) return false;
  state_ = State::kEnded;
  record_.status = status;
  head_.pass = Pass();
  ended_at_ = Now();
  row_.SetStage(Stage::kSending);
  return true;
}

void UnaryCall::EndUnread(const absl::Status& status) {
  if (!EndOnce(status, /*only_reading=*/true)) return;
  Finish(ToGrpcStatus(status));
}

void UnaryCall::End(const absl::Status& status) {
  if (!EndOnce(status, /*only_reading=*/false)) return;
  Finish(ToGrpcStatus(status));
}

void UnaryCall::End(const grpc::ByteBuffer& response) {
  if (!EndOnce(absl::OkStatus(), /*only_reading=*/false)) return;
  record_.reply_bytes = static_cast<std::int64_t>(response.Length());
  response_ = response;  // its slices are shared
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

CallReactor* RefuseCall(Engine& engine, RequestRecord record) {
  auto* const call = new RefusedCall;
  engine.Done(record);
  call->Finish(ToGrpcStatus(record.status));
  return call;
}

}  // namespace attnd::server
