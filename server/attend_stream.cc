#include "server/attend_stream.h"

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "server/log.h"
#include "server/receive.h"
#include "server/recent_ids.h"
#include "server/stream_problem.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kMessageOverheadBytes = 256;  // what a queued message costs beside its bytes

absl::Status GoneAway() { return absl::CancelledError("the caller cancelled or went away"); }

// One stream. It keeps itself alive until gRPC is done with it; jobs and the stall watch hold references too.
//
// Locks: mutex_ may be held while the pool's lock is taken, never the other way round; HasRoom, which the pool calls
// under its lock, reads atomics only. gRPC's operations are started under mutex_, or by the Sender while writing_ is
// set, and never run a reaction inside.
class StreamCall final : public CallReactor,
                         public Watched,
                         public BlockWriter,
                         public std::enable_shared_from_this<StreamCall> {
 public:
  StreamCall(Engine& engine, CallContext* context, CallHead head)
      : engine_(engine),
        context_(context),
        head_(std::move(head)),
        account_(head_.AccountIn(engine)),
        queue_bytes_max_(StreamQueueBytes(engine.config)) {}

  void Start() {
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

  void OnReadDone(bool ok) override {
    asked_ |= ok;
    if (!ok) return EndOfRequests();
    const absl::Status status = CatchBadAlloc([this] { return ReadMessage(); });
    const std::lock_guard lock(mutex_);
    last_message_ = Now();
    if (!status.ok()) DieLocked(status);
    ReadNextLocked();
    MaybeFinishLocked();
  }

  void OnWriteDone(bool ok) override {
    Outgoing written;  // freed after the lock
    const std::lock_guard lock(mutex_);
    written = std::move(queue_.front());
    queue_.pop_front();
    writing_ = false;
    LeaveLocked(written);
    const std::int64_t before = queue_bytes_.fetch_sub(written.bytes);
    if (!ok) DieLocked(GoneAway());
    WriteNextLocked();
    if (before >= queue_bytes_max_ && queue_bytes_ < queue_bytes_max_) WakeAllLocked();
    if (read_paused_ && closings_queued_ <= engine_.config.problems_in_flight_max) {
      read_paused_ = false;
      for (const auto& [id, problem] : problems_) problem->last_piece = Now();
      ReadNextLocked();
    }
    MaybeFinishLocked();
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    DieLocked(Now() >= head_.deadline ? absl::DeadlineExceededError("the call's deadline passed") : GoneAway());
    MaybeFinishLocked();
  }

  void OnDone() override {
    if (!asked_) CountUnread(engine_, head_);
    work_.reset();
    place_.reset();
    keep_.reset();  // the last act: this may be gone
  }

  void Tick(absl::Time now) override {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    if (writing_ && now - write_started_ >= absl::Milliseconds(engine_.config.send_stall_ms)) {
      DieLocked(absl::UnavailableError(
          absl::StrCat("the peer has not read for ", engine_.config.send_stall_ms, " ms (send_stall_ms)")));
      context_->TryCancel();
    }
    // What came of a message that is not whole is memory.
    if (problems_.empty() && queue_.empty() &&
        now - last_message_ >= absl::Milliseconds(engine_.config.connection_idle_ms)) {
      DieLocked(absl::UnavailableError(
          absl::StrCat("no message for ", engine_.config.connection_idle_ms, " ms (connection_idle_ms)")));
    }
    const auto problems = problems_;  // closing changes the map
    for (const auto& [id, problem] : problems) TickProblemLocked(problem, now);
    MaybeFinishLocked();
  }

  void WriteBlock(grpc::ByteBuffer message) override {
    const std::lock_guard lock(mutex_);
    EnqueueLocked({.message = message});
  }

  bool HasRoom() const override { return dead_ || queue_bytes_ < queue_bytes_max_; }

 private:
  using ProblemPtr = std::shared_ptr<StreamProblem>;

  struct Outgoing {
    grpc::ByteBuffer message;
    // A closing holds its problem's memory until every block before it is sent.
    std::shared_ptr<Reservation> held = nullptr;
    std::int64_t bytes = 0;
    std::optional<RequestRecord> closing = std::nullopt;  // of the problem that it closes
    absl::Time queued_at = Now();
  };

  // ---- what the peer sends ----

  // Parses what came. An error is the stream's: bytes that are no message belong to no problem.
  absl::Status ReadMessage() {
    Reservation held(account_);
    const StreamMessagePeek peek = PeekStreamMessage(incoming_);
    // Pieces fill memory that was reserved with their header; a header's inline tensors come before its problem is
    // known.
    if (const auto bytes = static_cast<std::int64_t>(incoming_.Length()); peek.is_header && bytes > kFreeMessageBytes) {
      if (absl::Status status = held.GrowTo("bytes of the header", bytes); !status.ok()) {
        incoming_.Clear();
        Refuse(peek.problem_id, status);
        return absl::OkStatus();
      }
    }
    v1::AttendStreamRequest message;
    absl::StatusOr<RawMessage> raw = Receive(engine_, incoming_, message, held);
    if (absl::IsResourceExhausted(raw.status())) {
      Refuse(peek.problem_id, raw.status());
      return absl::OkStatus();
    }
    if (!raw.ok()) return raw.status();
    Handle(message, *std::move(raw), std::move(held));
    return absl::OkStatus();
  }

  void Handle(const v1::AttendStreamRequest& message, RawMessage raw, Reservation held) {
    const std::uint64_t id = message.problem_id();
    if (absl::Status status = CheckKnownFields(message); !status.ok()) return Refuse(id, status);
    switch (message.part_case()) {
      case v1::AttendStreamRequest::kHeader: return HandleHeader(message, std::move(raw), std::move(held));
      case v1::AttendStreamRequest::kPiece: return HandlePiece(message, raw);
      case v1::AttendStreamRequest::kCancel: return HandleCancel(message);
      case v1::AttendStreamRequest::PART_NOT_SET: break;
    }
    Refuse(id, absl::InvalidArgumentError("part: absent, expected header, piece or cancel"));
  }

  void HandleHeader(const v1::AttendStreamRequest& message, RawMessage raw, Reservation held) {
    const std::uint64_t id = message.problem_id();
    if (engine_.lifecycle.draining()) return Refuse(id, Draining());
    {
      const std::lock_guard lock(mutex_);
      if (problems_.contains(id)) {
        return CloseUnopenedLocked(id, absl::InvalidArgumentError(absl::StrCat(
                                           "problem_id: ", id, " is in flight on this stream, and goes on")));
      }
      if (static_cast<std::int64_t>(problems_.size()) >= engine_.config.problems_in_flight_max) {
        recent_.Add(id);
        return CloseUnopenedLocked(id, absl::ResourceExhaustedError(absl::StrCat(
                                           "open problems of this stream: ", problems_.size(), ", allowed ",
                                           engine_.config.problems_in_flight_max, " (problems_in_flight_max)")));
      }
    }
    absl::StatusOr<ProblemPtr> opened;
    const absl::Status status = CatchBadAlloc([&] {
      opened = StreamProblem::Open(engine_, message, std::move(raw), std::move(held), head_, *this);
      return opened.status();
    });
    if (!status.ok()) return Refuse(id, status);
    const ProblemPtr problem = *std::move(opened);
    {
      const std::lock_guard lock(mutex_);
      recent_.Remove(id);
      if (dead_) return;
      problems_[id] = problem;
    }
    if (problem->complete()) RunProblem(problem);
  }

  void HandlePiece(const v1::AttendStreamRequest& message, RawMessage& raw) {
    const std::uint64_t id = message.problem_id();
    ProblemPtr problem;
    {
      const std::lock_guard lock(mutex_);
      const auto found = problems_.find(id);
      if (found == problems_.end()) return UnknownIdLocked(id);
      problem = found->second;
      problem->accepting = true;
    }
    absl::Status status = CheckKnown(message);
    if (status.ok()) status = problem->Accept(message.piece(), raw);
    {
      const std::lock_guard lock(mutex_);
      problem->accepting = false;
      problem->last_piece = Now();
      if (!IsOpenLocked(problem)) return;  // it was closed meanwhile
      if (!status.ok()) return EndLocked(problem, status);
      if (problem->running) return;  // since an earlier piece
    }
    if (problem->can_start()) RunProblem(problem);
  }

  void HandleCancel(const v1::AttendStreamRequest& message) {
    const std::uint64_t id = message.problem_id();
    if (absl::Status status = CheckKnown(message); !status.ok()) return Refuse(id, status);
    const std::lock_guard lock(mutex_);
    const auto found = problems_.find(id);
    if (found == problems_.end()) return UnknownIdLocked(id);
    EndLocked(found->second, absl::CancelledError("cancelled by the caller"));
  }

  // The peer has said all it will say.
  void EndOfRequests() {
    const std::lock_guard lock(mutex_);
    read_ended_ = true;
    if (context_->IsCancelled()) DieLocked(GoneAway());
    const auto problems = problems_;
    for (const auto& [id, problem] : problems) {
      if (problem->complete()) continue;
      EndLocked(problem,
                absl::InvalidArgumentError(absl::StrCat("the stream's requests ended early; ", problem->Missing())));
    }
    MaybeFinishLocked();
  }

  void ReadNextLocked() {
    if (dead_ || finished_ || read_ended_) return;
    // A peer that makes closings faster than it reads them is not listened to until it has.
    read_paused_ = closings_queued_ > 2 * engine_.config.problems_in_flight_max;
    if (!read_paused_) StartRead(&incoming_);
  }

  // ---- problems ----

  void RunProblem(const ProblemPtr& problem) {
    {
      const std::lock_guard lock(mutex_);
      if (!IsOpenLocked(problem)) return;
      problem->running = true;
    }
    const absl::Status status = CatchBadAlloc([&] {
      return problem->Run([self = shared_from_this(), problem](const AttentionReport& report) {
        self->engine_.sender.Do([self, problem, report] {
          const std::lock_guard lock(self->mutex_);
          self->CloseLocked(problem, report.status, &report);
          self->MaybeFinishLocked();
        });
      });
    });
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    CloseLocked(problem, status);
  }

  // Something is wrong with what came for this id: it ends the problem of that id, open or not.
  void Refuse(std::uint64_t id, const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (const auto found = problems_.find(id); found != problems_.end()) return EndLocked(found->second, status);
    recent_.Add(id);
    CloseUnopenedLocked(id, status);
  }

  // Pieces and cancels of a problem that was closed a moment ago are no news; others are told once.
  void UnknownIdLocked(std::uint64_t id) {
    if (recent_.Contains(id)) return;
    recent_.Add(id);
    CloseUnopenedLocked(id, absl::NotFoundError(absl::StrCat("problem_id: ", id, " was not opened on this stream")));
  }

  // By value, here and below: what the caller holds may be the map's own reference, which closing takes away.
  void EndLocked(ProblemPtr problem, const absl::Status& status) {
    if (problem->running) {
      problem->stopper().Stop(status);  // its job closes it
    } else {
      CloseLocked(problem, status);
    }
  }

  bool IsOpenLocked(const ProblemPtr& problem) const {
    const auto found = problems_.find(problem->id());
    return found != problems_.end() && found->second == problem;
  }

  RequestRecord RecordOf(std::uint64_t id) const {
    RequestRecord record = head_.Record();
    absl::StrAppend(&record.request_id, "/", id);
    return record;
  }

  void CloseUnopenedLocked(std::uint64_t id, const absl::Status& status) {
    RequestRecord record = RecordOf(id);
    record.status = status;
    EnqueueLocked({.message = EncodeClosing(id, status, {}), .closing = std::move(record)});
  }

  void CloseLocked(ProblemPtr problem, const absl::Status& status, const AttentionReport* report = nullptr) {
    if (!IsOpenLocked(problem)) return;
    problems_.erase(problem->id());
    problem->pass = Pass();
    recent_.Add(problem->id());
    RequestRecord record = RecordOf(problem->id());
    record.shape = problem->shape();
    record.status = status;
    record.request_bytes = problem->input_bytes();
    record.reply_bytes = problem->output_bytes();
    record.memory_bytes = problem->memory_bytes();
    v1::Statistics& statistics = *problem->closing().mutable_statistics();
    if (report != nullptr) {
      record.queued = problem->waited();
      engine_.Note(*report, problem->predicted(), record, statistics);
    }
    if (!problem->accepting && problem->complete()) {
      record.received = problem->complete_at() - problem->opened_at();
      record.total = Now() - problem->complete_at();
    }
    statistics.set_total_us(absl::ToInt64Microseconds(record.total));
    // While a piece is being copied its buffer stays; the reading side frees the problem then.
    std::shared_ptr<Reservation> held = problem->accepting ? nullptr : problem->Release();
    EnqueueLocked({.message = EncodeClosing(problem->id(), status, problem->closing()),
                   .held = std::move(held),
                   .closing = std::move(record)});
  }

  void TickProblemLocked(const ProblemPtr& problem, absl::Time now) {
    // The pool looks at a job that is held back only when told to.
    if (problem->running && (dead_ || problem->stopper().token()->ShouldStop())) problem->stopper().Wake();
    if (problem->accepting || problem->complete()) return;  // its bytes are just coming, or came
    if (now >= problem->stopper().token()->deadline()) {
      return EndLocked(problem, absl::DeadlineExceededError(absl::StrCat(
                                    "the deadline passed while pieces were awaited; ", problem->Missing())));
    }
    if (!read_paused_ && now - problem->last_piece >= absl::Milliseconds(engine_.config.receive_stall_ms)) {
      EndLocked(problem, absl::DeadlineExceededError(absl::StrCat("no piece for ", engine_.config.receive_stall_ms,
                                                                  " ms (receive_stall_ms); ", problem->Missing())));
    }
  }

  void WakeAllLocked() {
    for (const auto& [id, problem] : problems_) problem->stopper().Wake();
  }

  // ---- what goes out ----

  void EnqueueLocked(Outgoing outgoing) {
    if (outgoing.closing) ++closings_queued_;
    if (dead_ || finished_) return LeaveLocked(outgoing);
    outgoing.bytes = static_cast<std::int64_t>(outgoing.message.Length()) + kMessageOverheadBytes;
    queue_bytes_ += outgoing.bytes;
    queue_.push_back(std::move(outgoing));
    if (!writing_) WriteNextLocked();
  }

  // It was written, or never will be. A request is over when its closing leaves.
  void LeaveLocked(Outgoing& outgoing) {
    if (!outgoing.closing) return;
    --closings_queued_;
    outgoing.closing->sent = Now() - outgoing.queued_at;
    outgoing.closing->total += outgoing.closing->sent;
    engine_.Done(*outgoing.closing);
  }

  void WriteNextLocked() {
    if (queue_.empty() || dead_ || finished_) return;
    writing_ = true;
    write_started_ = Now();
    engine_.sender.Do([self = shared_from_this(), message = &queue_.front().message] { self->StartWrite(message); });
  }

  // Nothing that is said from here on reaches the peer: stop all work and free what can be freed.
  void DieLocked(const absl::Status& reason) {
    if (dead_ || finished_) return;
    end_status_ = reason;
    dead_ = true;
    const auto problems = problems_;
    for (const auto& [id, problem] : problems) EndLocked(problem, reason);
    while (queue_.size() > (writing_ ? 1u : 0u)) {
      queue_bytes_ -= queue_.back().bytes;
      LeaveLocked(queue_.back());
      queue_.pop_back();
    }
  }

  // Every way to the end goes through here: no job runs, no write is pending.
  void MaybeFinishLocked() {
    if (finished_ || writing_ || !problems_.empty()) return;
    if (dead_) return FinishLocked(end_status_);
    if (read_ended_) return FinishLocked(absl::OkStatus());
    if (engine_.lifecycle.draining()) FinishLocked(Draining());
  }

  void FinishLocked(const absl::Status& status) {
    finished_ = true;
    head_.pass = Pass();
    Finish(ToGrpcStatus(status));
  }

  Engine& engine_;
  CallContext* const context_;  // valid until finished_
  CallHead head_;
  const std::shared_ptr<Account> account_;
  const std::int64_t queue_bytes_max_;
  std::shared_ptr<StreamCall> keep_;
  Lifecycle::Work work_;
  OpenCalls::Place place_;
  grpc::ByteBuffer incoming_;
  bool asked_ = false;  // a message came; of the reading side

  std::mutex mutex_;
  std::map<std::uint64_t, ProblemPtr> problems_;
  RecentIds recent_;
  std::deque<Outgoing> queue_;  // the front is being written while writing_
  std::int64_t closings_queued_ = 0;
  absl::Time write_started_, last_message_;
  absl::Status end_status_;
  bool writing_ = false, read_paused_ = false, read_ended_ = false, finished_ = false;
  std::atomic<bool> dead_{false};  // written under mutex_
  std::atomic<std::int64_t> queue_bytes_{0};
};

}  // namespace

CallReactor* StartAttendStream(Engine& engine, CallContext* context, CallHead head) {
  auto call = std::make_shared<StreamCall>(engine, context, std::move(head));
  call->Start();
  return call.get();
}

}  // namespace attnd::server
