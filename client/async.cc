#include "client/async.h"

#include <grpcpp/support/client_callback.h>

#include <utility>
#include <vector>

#include "client/client_state.h"
#include "client/decode.h"
#include "client/encode.h"
#include "client/wire.h"

namespace attnd::client {

namespace {

// The calls of whose client a callback runs on this thread.
thread_local const AsyncCalls* callback_of = nullptr;

}  // namespace

bool AsyncCalls::Add(AsyncCall& call) {
  const std::scoped_lock lock(mutex_);
  call.next_ = first_;
  if (first_ != nullptr) first_->previous_ = &call;
  first_ = &call;
  ++count_;
  return !closed_;
}

void AsyncCalls::Remove(AsyncCall& call) {
  const std::scoped_lock lock(mutex_);
  (call.previous_ != nullptr ? call.previous_->next_ : first_) = call.next_;
  if (call.next_ != nullptr) call.next_->previous_ = call.previous_;
  --count_;
  removed_.notify_all();
}

bool AsyncCalls::CancelAndWait() {
  std::vector<std::shared_ptr<AsyncCall>> open;
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    for (AsyncCall* call = first_; call != nullptr; call = call->next_) open.push_back(call->shared_from_this());
  }
  for (const std::shared_ptr<AsyncCall>& call : open) call->Cancel();
  open.clear();
  const bool in_callback = callback_of == this;
  std::unique_lock lock(mutex_);
  removed_.wait(lock, [&] { return count_ == (in_callback ? 1 : 0); });
  return in_callback;
}

void AsyncCalls::WaitForAll() {
  std::unique_lock lock(mutex_);
  removed_.wait(lock, [&] { return count_ == 0; });
}

AsyncCall::AsyncCall(ClientState& state, const Problem& problem, const CallOptions& options, AttendCallback callback)
    : state_(state),
      problem_(problem),
      deadline_(state_.Deadline(options)),
      retries_(state_.options.retry, state_.budget, deadline_),
      callback_(std::move(callback)),
      refusal_(CheckFitsOneMessage(problem)) {}

void AsyncCall::Start() {
  self_ = shared_from_this();
  const bool open = state_.async_calls.Add(*this);
  if (!open) refusal_ = absl::CancelledError("the client is being destroyed");
  if (!refusal_.ok()) return Later(absl::ZeroDuration(), &AsyncCall::Refuse);
  request_ = EncodeAttend(problem_->shared_request());
  Attempt();
}

void AsyncCall::Cancel() {
  std::shared_ptr<grpc::ClientContext> context;
  std::shared_ptr<Timer> timer;
  {
    const std::scoped_lock lock(mutex_);
    cancelled_ = true;
    context = context_;
    timer = timer_;
  }
  // What gRPC then calls must not find the lock held.
  if (context != nullptr) context->TryCancel();
  if (timer != nullptr) timer->Cancel();
}

void AsyncCall::Attempt() {
  Release();
  std::shared_ptr<grpc::ClientContext> context;
  {
    const std::scoped_lock lock(mutex_);
    if (!cancelled_) context = context_ = std::make_shared<grpc::ClientContext>();
  }
  if (context == nullptr) return Finish(absl::CancelledError("the caller cancelled"));
  context->set_deadline(absl::ToChronoTime(deadline_));
  connection_ = state_.pool.Take();
  reply_.Clear();
  grpc::internal::CallbackUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer, grpc::ByteBuffer, grpc::ByteBuffer>(
      connection_->channel.get(), connection_->attend, context.get(), &request_, &reply_,
      [this](const grpc::Status& status) { OnStatus(status); });
}

void AsyncCall::OnStatus(const grpc::Status& grpc_status) {
  connection_ = Pool::Place();
  const absl::Status status = FromGrpc(grpc_status);
  if (status.ok()) {
    state_.budget.OnSuccess();
    return Finish(DecodeAnswer(*problem_, reply_));
  }
  const std::optional<absl::Duration> wait = retries_.After(status, state_.clock.Now(), state_.clock.Uniform());
  if (!wait.has_value()) return Finish(status);
  Later(*wait, &AsyncCall::Attempt);
}

void AsyncCall::Later(absl::Duration wait, void (AsyncCall::*next)()) {
  Release();
  const std::scoped_lock lock(mutex_);
  timer_ = state_.clock.After(cancelled_ ? absl::ZeroDuration() : wait, [this, next] { (this->*next)(); });
}

void AsyncCall::Release() {
  std::shared_ptr<grpc::ClientContext> context;
  std::shared_ptr<Timer> timer;
  // What gRPC does when these go must not find the lock held.
  const std::scoped_lock lock(mutex_);
  context = std::move(context_);
  timer = std::move(timer_);
}

void AsyncCall::Finish(absl::StatusOr<Answer> answer) {
  const std::shared_ptr<AsyncCall> self = std::move(self_);
  Release();
  // Whoever keeps a PendingCall keeps no tensors.
  problem_.reset();
  request_.Clear();
  reply_.Clear();
  AttendCallback callback = std::move(callback_);
  callback_of = &state_.async_calls;
  std::move(callback)(std::move(answer));
  callback = nullptr;
  callback_of = nullptr;
  state_.async_calls.Remove(*this);
}

}  // namespace attnd::client
