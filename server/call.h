// One call on the generic service: what is known of it when its headers have come, and the way of a call that takes one
// message and gives one.
// Thread rule: a call's reactions and ticks may come from several threads at once.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/access.h"
#include "server/engine.h"

namespace attnd::server {

using CallContext = grpc::GenericCallbackServerContext;
using CallReactor = grpc::ServerGenericBidiReactor;  // bytes both ways

struct CallHead {
  absl::string_view method;  // "Attend", for the log
  std::string peer;
  std::string request_id, traceparent;  // as RequestRecord has them
  absl::Time arrived;
  absl::Time deadline;  // infinite when the call has none
  Caller caller;
  OpenCalls::Place place;  // held until the call ends
  Pass pass;               // until its answer leaves: who has it may ask again

  RequestRecord Record() const;
  // Of its memory.
  std::shared_ptr<Account> AccountIn(Engine& engine) const;
};

// Of an answer that its peer has not taken for send_stall_ms.
absl::Status NotRead(const Engine& engine);

// The call ended, by its caller, before a message had come, or was one too many of its connection: who does that too
// often loses the connection.
void CountUnread(Engine& engine, const CallHead& head);

// Reads one message, or several, within the call's deadline, and answers once. It keeps itself alive until gRPC is done
// with it.
class UnaryCall : public CallReactor, public Watched, public std::enable_shared_from_this<UnaryCall> {
 public:
  UnaryCall(Engine& engine, CallContext* context, CallHead head);

  void Start();

  void OnReadDone(bool ok) final;
  void OnCancel() final;
  void OnDone() final;
  void Tick(absl::Time now) final;

 protected:
  // The message came: it is answered, now or later, by End, or the next one is asked for. An error is the answer.
  virtual absl::Status Answer(grpc::ByteBuffer& request) = 0;
  // From Answer, whose last act it is: the next message comes to Answer too, or the end of all to AnswerEnd.
  void ReadNext();
  virtual absl::Status AnswerEnd() { return absl::OkStatus(); }
  // The answer is not wanted any more.
  virtual void Stop(absl::Status) {}
  // Now and then while it is made.
  virtual void TickAnswering() {}
  // Nothing of this call is needed any more.
  virtual void Release() {}

  void End(const absl::Status& status);  // not OK
  void End(const grpc::ByteBuffer& response);

  Engine& engine_;
  CallHead head_;
  const absl::Time deadline_;  // of the call, or what it gets without one
  RequestRecord record_;
  RequestTable::Row row_;
  absl::Time whole_at_;  // when its last message had come

 private:
  enum class State { kReading, kAnswering, kEnded, kDone };
  // With this status. False when it has ended, or, for one that waits for a message, when that came.
  bool EndOnce(const absl::Status& status, bool only_reading);
  void EndUnread(const absl::Status& status);

  CallContext* const context_;
  grpc::ByteBuffer request_, response_;
  std::shared_ptr<UnaryCall> keep_;
  std::mutex mutex_;
  State state_ = State::kReading;  // guarded by mutex_, like the next
  bool asked_ = false;             // a message came
  absl::Time ended_at_;
};

// Begins a call of this kind, which keeps itself alive; `more` goes to its constructor.
template <typename Call, typename... More>
CallReactor* StartCall(Engine& engine, CallContext* context, CallHead head, More&&... more) {
  const auto call = std::make_shared<Call>(engine, context, std::move(head), std::forward<More>(more)...);
  call->Start();
  return call.get();
}

// A call that is over before it began.
CallReactor* RefuseCall(Engine& engine, RequestRecord record);

}  // namespace attnd::server
