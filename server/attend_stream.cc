#include "server/attend_stream.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "server/message_stream.h"
#include "server/receive.h"
#include "server/recent_ids.h"
#include "server/stream_problem.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

// Locks: see message_stream.h.
class StreamCall final : public MessageStream, public BlockWriter {
 public:
  StreamCall(Engine& engine, CallContext* context, CallHead head)
      : MessageStream(engine, context, std::move(head)), account_(head_.AccountIn(engine)) {}

  void WriteBlock(grpc::ByteBuffer message) override {
    const std::lock_guard lock(mutex_);
    EnqueueLocked({.message = message});
  }

  bool HasRoom() const override { return HasQueueRoom(); }

 private:
  using ProblemPtr = std::shared_ptr<StreamProblem>;

  // ---- what the peer sends ----

  // Parses what came. An error is the stream's: bytes that are no message belong to no problem.
  absl::Status ReadMessage(grpc::ByteBuffer& incoming) override {
    Reservation held(account_);
    const StreamMessagePeek peek = PeekStreamMessage(incoming);
    // Pieces fill memory that was reserved with their header; a header's inline tensors come before its problem is
    // known.
    if (const auto bytes = static_cast<std::int64_t>(incoming.Length()); peek.is_header && bytes > kFreeMessageBytes) {
      if (absl::Status status = held.GrowTo("bytes of the header", bytes); !status.ok()) {
        incoming.Clear();
        Refuse(peek.problem_id, status);
        return absl::OkStatus();
      }
    }
    v1::AttendStreamRequest message;
    absl::StatusOr<RawMessage> raw = Receive(engine_, incoming, message, held);
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
      if (dead()) return;
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

  void EndOfRequestsLocked() override {
    const auto problems = problems_;
    for (const auto& [id, problem] : problems) {
      if (problem->complete()) continue;
      EndLocked(problem,
                absl::InvalidArgumentError(absl::StrCat("the stream's requests ended early; ", problem->Missing())));
    }
  }

  bool IsFullLocked() const override {
    // Resumed at half, so that it does not stop at each message.
    return closings_queued_ > (read_paused() ? 1 : 2) * engine_.config.problems_in_flight_max;
  }

  void ReadResumedLocked() override {
    for (const auto& [id, problem] : problems_) problem->last_piece = Now();
  }

  // ---- problems ----

  void RunProblem(const ProblemPtr& problem) {
    {
      const std::lock_guard lock(mutex_);
      if (!IsOpenLocked(problem)) return;
      problem->running = true;
    }
    const absl::Status status = CatchBadAlloc([&] {
      return problem->Run([self = Self(), problem](const AttentionReport& report) {
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

  void TickLocked(absl::Time now) override {
    const auto problems = problems_;  // closing changes the map
    for (const auto& [id, problem] : problems) TickProblemLocked(problem, now);
  }

  void TickProblemLocked(const ProblemPtr& problem, absl::Time now) {
    // The pool looks at a job that is held back only when told to.
    if (problem->running && (dead() || problem->stopper().token()->ShouldStop())) problem->stopper().Wake();
    if (problem->accepting || problem->complete()) return;  // its bytes are just coming, or came
    if (now >= problem->stopper().token()->deadline()) {
      return EndLocked(problem, absl::DeadlineExceededError(absl::StrCat(
                                    "the deadline passed while pieces were awaited; ", problem->Missing())));
    }
    if (!read_paused() && now - problem->last_piece >= absl::Milliseconds(engine_.config.receive_stall_ms)) {
      EndLocked(problem, absl::DeadlineExceededError(absl::StrCat("no piece for ", engine_.config.receive_stall_ms,
                                                                  " ms (receive_stall_ms); ", problem->Missing())));
    }
  }

  void RoomLocked() override {
    for (const auto& [id, problem] : problems_) problem->stopper().Wake();
  }

  void EndAllLocked(const absl::Status& reason) override {
    const auto problems = problems_;
    for (const auto& [id, problem] : problems) EndLocked(problem, reason);
  }

  std::int64_t OpenLocked() const override { return static_cast<std::int64_t>(problems_.size()); }

  std::shared_ptr<StreamCall> Self() { return std::static_pointer_cast<StreamCall>(shared_from_this()); }

  const std::shared_ptr<Account> account_;
  // Guarded by mutex_.
  std::map<std::uint64_t, ProblemPtr> problems_;
  RecentIds recent_;
};

}  // namespace

CallReactor* StartAttendStream(Engine& engine, CallContext* context, CallHead head) {
  return StartCall<StreamCall>(engine, context, std::move(head));
}

}  // namespace attnd::server
