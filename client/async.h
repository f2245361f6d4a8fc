// Calls whose answers are handed to a callback, on gRPC's own threads: nothing here starts one.
// Thread rule: any thread.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/clock.h"
#include "client/pool.h"
#include "client/retry.h"

namespace attnd::client {

// A client's open asynchronous calls.
class AsyncCalls {
 public:
  // False when CancelAndWait was called: the call is to end as cancelled.
  bool Add(AsyncCall& call);
  void Remove(AsyncCall& call);
  // Cancels all, those that callbacks still begin too, and waits until each callback has returned; not for one that
  // this is called from, of which it returns true: that one is still to be waited for, elsewhere.
  bool CancelAndWait();
  void WaitForAll();

 private:
  std::mutex mutex_;
  std::condition_variable removed_;
  bool closed_ = false;
  AsyncCall* first_ = nullptr;  // a list through the calls
  std::int64_t count_ = 0;
};

// One call: attempts with waits between them, then the callback, once. It holds itself until that has returned, and
// touches nothing of the client after that: gRPC's channels must not be destroyed by the threads that run callbacks,
// which are joined when the last channel goes.
class AsyncCall : public std::enable_shared_from_this<AsyncCall> {
 public:
  AsyncCall(ClientState& state, const Problem& problem, const CallOptions& options, AttendCallback callback);

  void Start();
  void Cancel();

 private:
  friend class AsyncCalls;

  void Attempt();
  void OnStatus(const grpc::Status& status);
  // Calls `next` after a while, on another thread, or soon where the call is cancelled.
  void Later(absl::Duration wait, void (AsyncCall::*next)());
  void Finish(absl::StatusOr<Answer> answer);
  // Gives back what the last attempt and wait held.
  void Release();
  void Refuse() { Finish(refusal_); }

  ClientState& state_;                    // until the call is removed from its list
  std::optional<const Problem> problem_;  // until it is answered
  const absl::Time deadline_;
  Retries retries_;
  AttendCallback callback_;
  absl::Status refusal_;  // of a call that is not even sent
  grpc::ByteBuffer request_, reply_;
  Pool::Place connection_;
  std::shared_ptr<AsyncCall> self_;

  std::mutex mutex_;
  bool cancelled_ = false;
  std::shared_ptr<grpc::ClientContext> context_;  // of the attempt, and
  std::shared_ptr<Timer> timer_;                  // of the wait that goes on

  AsyncCall *previous_ = nullptr, *next_ = nullptr;  // AsyncCalls'
};

}  // namespace attnd::client
