#include "server/message_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kMessageOverheadBytes = 256;  // what a queued message costs beside its bytes

absl::Status GoneAway() { return absl::CancelledError("the caller cancelled or went away"); }

}  // namespace

MessageStream::MessageStream(Engine& engine, CallContext* context, CallHead head)
    : engine_(engine), head_(std::move(head)), context_(context), queue_bytes_max_(StreamQueueBytes(engine.config)) {}

void MessageStream::Start() {
  keep_ = shared_from_this();
  absl::StatusOr<Lifecycle::Work> work = engine_.lifecycle.Enter();
  absl::StatusOr<OpenCalls::Place> place = engine_.open_streams.Enter(head_.peer);
  const std::lock_guard lock(mutex_);
  if (!work.ok()) return FinishLocked(work.status());
  work_ = *std::move(work);
  if (!place.ok()) return FinishLocked(place.status());
  place_ = *std::move(place);
  last_message_ = Now();
  engine_.watch.Add(weak_from_this());
  StartRead(&incoming_);
}

void MessageStream::OnReadDone(bool ok) {
  asked_ |= ok;
  absl::Status status;
  if (ok) status = CatchBadAlloc([this] { return ReadMessage(incoming_); });
  const std::lock_guard lock(mutex_);
  if (ok) {
    last_message_ = Now();
    if (!status.ok()) DieLocked(status);
    ReadNextLocked();
  } else {
    read_ended_ = true;
    if (context_->IsCancelled()) DieLocked(GoneAway());
    EndOfRequestsLocked();
  }
  MaybeFinishLocked();
}

void MessageStream::OnWriteDone(bool ok) {
  Outgoing written;  // freed after the lock
  const std::lock_guard lock(mutex_);
  written = std::move(queue_.front());
  queue_.pop_front();
  writing_ = false;
  if (!ok) DieLocked(GoneAway());
  LeaveLocked(written, ok ? absl::OkStatus() : end_status_);
  const std::int64_t before = queue_bytes_.fetch_sub(written.bytes);
  WriteNextLocked();
  if (before >= queue_bytes_max_ && queue_bytes_ < queue_bytes_max_) RoomLocked();
  if (read_paused_ && !IsFullLocked()) {
    ReadResumedLocked();
    ReadNextLocked();
  }
  MaybeFinishLocked();
}

void MessageStream::OnCancel() {
  const std::lock_guard lock(mutex_);
  DieLocked(Now() >= head_.deadline ? absl::DeadlineExceededError("the call's deadline passed") : GoneAway());
  MaybeFinishLocked();
}

void MessageStream::OnDone() {
  if (!asked_) CountUnread(engine_, head_);
  work_.reset();
  place_.reset();
  keep_.reset();  // the last act: this may be gone
}

void MessageStream::Tick(absl::Time now) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  if (writing_ && now - write_started_ >= absl::Milliseconds(engine_.config.send_stall_ms)) {
    DieLocked(NotRead(engine_));
    context_->TryCancel();
  }
  // What came of a message that is not whole is memory.
  if (OpenLocked() == 0 && queue_.empty() &&
      now - last_message_ >= absl::Milliseconds(engine_.config.connection_idle_ms)) {
    DieLocked(absl::UnavailableError(
        absl::StrCat("no message for ", engine_.config.connection_idle_ms, " ms (connection_idle_ms)")));
  }
  TickLocked(now);
  MaybeFinishLocked();
}

void MessageStream::EnqueueLocked(Outgoing outgoing) {
  if (outgoing.closing) ++closings_queued_;
  if (dead_ || finished_) return LeaveLocked(outgoing, end_status_);
  outgoing.bytes = static_cast<std::int64_t>(outgoing.message.Length()) + kMessageOverheadBytes;
  queue_bytes_ += outgoing.bytes;
  queue_.push_back(std::move(outgoing));
  if (!writing_) WriteNextLocked();
}

void MessageStream::DieLocked(const absl::Status& reason) {
  if (dead_ || finished_) return;
  end_status_ = reason;
  dead_ = true;
  EndAllLocked(reason);
  while (queue_.size() > (writing_ ? 1u : 0u)) {
    queue_bytes_ -= queue_.back().bytes;
    LeaveLocked(queue_.back(), reason);
    queue_.pop_back();
  }
}

void MessageStream::MaybeFinishLocked() {
  if (finished_ || writing_ || OpenLocked() > 0) return;
  if (dead_) return FinishLocked(end_status_);
  if (read_ended_) return FinishLocked(absl::OkStatus());
  if (engine_.lifecycle.draining()) FinishLocked(Draining());
}

// A peer that asks faster than it reads answers is not listened to until it has.
void MessageStream::ReadNextLocked() {
  if (dead_ || finished_ || read_ended_) return;
  read_paused_ = IsFullLocked();
  if (!read_paused_) StartRead(&incoming_);
}

void MessageStream::LeaveLocked(Outgoing& outgoing, const absl::Status& reason) {
  if (!outgoing.closing) return;
  --closings_queued_;
  outgoing.closing->status.Update(reason);
  outgoing.closing->sent = Now() - outgoing.queued_at;
  outgoing.closing->total += outgoing.closing->sent;
  engine_.Done(*outgoing.closing);
}

void MessageStream::WriteNextLocked() {
  if (queue_.empty() || dead_ || finished_) return;
  writing_ = true;
  write_started_ = Now();
  engine_.sender.Do([self = shared_from_this(), message = &queue_.front().message] { self->StartWrite(message); });
}

void MessageStream::FinishLocked(const absl::Status& status) {
  finished_ = true;
  head_.pass = Pass();
  Finish(ToGrpcStatus(status));
}

}  // namespace attnd::server
