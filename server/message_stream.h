// A call of many messages both ways: reading, answering and writing go on at the same time. This is what every such
// call shares: its start, the queue of what goes out, and its ends (a peer that does not read or says nothing, a
// cancel, a drain). What messages mean is for those who derive from it.
//
// Thread rule: reactions on gRPC's threads, answers from any, ticks from the stall watch; one mutex inside. mutex_ may
// be held while the pool's lock is taken, never the other way round; HasRoom, which the pool calls under its lock,
// reads atomics only. gRPC's operations are started under mutex_, or by the Sender while writing_ is set, and never run
// a reaction inside.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "server/call.h"

namespace attnd::server {

// One stream. It keeps itself alive until gRPC is done with it; jobs and the stall watch hold references too.
class MessageStream : public CallReactor, public Watched, public std::enable_shared_from_this<MessageStream> {
 public:
  MessageStream(Engine& engine, CallContext* context, CallHead head);

  void Start();

  void OnReadDone(bool ok) final;
  void OnWriteDone(bool ok) final;
  void OnCancel() final;
  void OnDone() final;
  void Tick(absl::Time now) final;

 protected:
  struct Outgoing {
    grpc::ByteBuffer message;
    std::shared_ptr<void> held = nullptr;  // memory, until this and every message before it is sent
    std::int64_t bytes = 0;
    std::optional<RequestRecord> closing = std::nullopt;  // of the request that it closes
    absl::Time queued_at = Now();
  };

  // ---- for those who derive; all but the first are called under mutex_ ----

  // A message came. An error is the stream's.
  virtual absl::Status ReadMessage(grpc::ByteBuffer& message) = 0;
  // The peer has said all it will say.
  virtual void EndOfRequestsLocked() = 0;
  // Stops and forgets every request, now or soon, for a reason that nobody will be told.
  virtual void EndAllLocked(const absl::Status& reason) = 0;
  // Requests that are not answered yet.
  virtual std::int64_t OpenLocked() const = 0;
  // So many answers wait that no more is read for now.
  virtual bool IsFullLocked() const = 0;
  // It reads again after it was full; there is room in the queue again.
  virtual void ReadResumedLocked() {}
  virtual void RoomLocked() {}
  virtual void TickLocked(absl::Time now) = 0;

  // ---- what they stand on ----

  void EnqueueLocked(Outgoing outgoing);
  // Nothing that is said from here on reaches the peer: stop all work and free what can be freed.
  void DieLocked(const absl::Status& reason);
  // Every way to the end goes through here: no request is open, no write is pending.
  void MaybeFinishLocked();
  bool HasQueueRoom() const { return dead_ || queue_bytes_ < queue_bytes_max_; }
  bool dead() const { return dead_; }
  bool read_paused() const { return read_paused_; }

  Engine& engine_;
  CallHead head_;
  std::mutex mutex_;
  std::int64_t closings_queued_ = 0;  // guarded by mutex_

 private:
  void ReadNextLocked();
  // It was written, or, with the reason, never will be. A request is over when its closing leaves; one whose closing
  // does not has no answer, and ends with the reason.
  void LeaveLocked(Outgoing& outgoing, const absl::Status& reason);
  void WriteNextLocked();
  void FinishLocked(const absl::Status& status);

  CallContext* const context_;  // valid until finished_
  const std::int64_t queue_bytes_max_;
  std::shared_ptr<MessageStream> keep_;
  Lifecycle::Work work_;
  OpenCalls::Place place_;
  grpc::ByteBuffer incoming_;
  bool asked_ = false;  // a message came; of the reading side

  // Guarded by mutex_.
  std::deque<Outgoing> queue_;  // the front is being written while writing_
  absl::Time write_started_, last_message_;
  absl::Status end_status_;
  bool writing_ = false, read_paused_ = false, read_ended_ = false, finished_ = false;
  std::atomic<bool> dead_{false};  // written under mutex_
  std::atomic<std::int64_t> queue_bytes_{0};
};

}  // namespace attnd::server
