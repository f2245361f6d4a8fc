#include "server/inference/infer.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "server/inference/decode.h"
#include "server/inference/encode.h"
#include "server/message_stream.h"
#include "server/receive.h"
#include "server/whole_problem.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

constexpr std::size_t kIdBytesMax = 1024;

// `head`: what its answer repeats of the message, filled as that is read.
class InferDoor final : public Door {
 public:
  explicit InferDoor(std::shared_ptr<InferHead> head) : head_(std::move(head)) {}

  absl::StatusOr<Asked> Read(const Engine& engine, grpc::ByteBuffer& message, Reservation& held,
                             RequestRecord& record) override {
    const auto request = std::make_shared<inference::ModelInferRequest>();
    absl::StatusOr<RawMessage> raw = Receive(engine, message, *request, held);
    if (!raw.ok()) return raw.status();
    if (request->id().size() > kIdBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("id: ", request->id().size(), " bytes, expected at most ", kIdBytesMax));
    }
    head_->id = request->id();
    if (absl::Status status = CheckKnown(*request); !status.ok()) return status;
    const absl::StatusOr<Model> model = FindModel(engine, request->model_name(), request->model_version());
    if (!model.ok()) return model.status();
    record.model = head_->model_name = model->name;
    record.model_version = head_->model_version = model->version;
    absl::StatusOr<InferProblem> problem = DecodeInfer(request, *model, *raw, held);
    if (!problem.ok()) return problem.status();
    if (absl::Status status = CheckRequired(*model, *problem->native); !status.ok()) return status;
    replied_ = std::move(problem->replied);
    return Asked{*std::move(raw), std::move(problem->native), problem->timeout};
  }

  grpc::ByteBuffer Write(const Problem& problem, const std::vector<NamedOutput>& outputs,
                         const v1::Statistics&) const override {
    return EncodeInferResponse(*head_, problem, replied_, outputs);
  }

  absl::Status InItsWords(const absl::Status& refusal) const override { return InInferenceWords(refusal); }

 private:
  const std::shared_ptr<InferHead> head_;
  std::vector<OutputKind> replied_;
};

class InferStream final : public MessageStream {
 public:
  using MessageStream::MessageStream;

 private:
  struct Request {
    Request(Engine& engine, const CallHead& call, std::int64_t number, absl::Time came)
        : whole_at(came),
          record(call.Record()),
          row(engine.requests, call.method, call.peer, call.caller.name()),
          problem(engine, call, engine.Deadline(came, call.deadline), std::make_unique<InferDoor>(head), record, row) {
      absl::StrAppend(&record.request_id, "/", number);
    }

    const absl::Time whole_at;
    const std::shared_ptr<InferHead> head = std::make_shared<InferHead>();
    RequestRecord record;
    RequestTable::Row row;
    Pass pass;
    WholeProblem problem;
    std::optional<grpc::ByteBuffer> answer;  // until every request before it is answered
  };

  absl::Status ReadMessage(grpc::ByteBuffer& message) override {
    const auto request = std::make_shared<Request>(engine_, head_, ++requests_came_, Now());
    request->record.request_bytes = static_cast<std::int64_t>(message.Length());
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    const absl::Status status = CatchBadAlloc([&] {
      absl::StatusOr<Pass> pass = head_.caller.Enter();
      if (!pass.ok()) return pass.status();
      request->pass = *std::move(pass);
      return request->problem.Start(
          message, request->whole_at,
          [self = std::static_pointer_cast<InferStream>(shared_from_this()),
           request](const absl::StatusOr<grpc::ByteBuffer>& answer) { self->Answered(request, answer); });
    });
    message.Clear();
    if (!status.ok()) Answered(request, status);
    return absl::OkStatus();
  }

  void Answered(const std::shared_ptr<Request>& request, const absl::StatusOr<grpc::ByteBuffer>& answer) {
    grpc::ByteBuffer message =
        answer.ok() ? EncodeStreamAnswer(*answer) : EncodeStreamError(*request->head, answer.status());
    const std::lock_guard lock(mutex_);
    request->record.status = answer.status();
    request->pass = Pass();
    request->answer = message;
    while (!requests_.empty() && requests_.front()->answer.has_value()) {
      const std::shared_ptr<Request> next = std::move(requests_.front());
      requests_.pop_front();
      next->row.SetStage(Stage::kSending);
      next->record.reply_bytes = static_cast<std::int64_t>(next->answer->Length());
      next->record.total = Now() - next->whole_at;
      EnqueueLocked({.message = *next->answer, .held = next, .closing = next->record});
    }
    MaybeFinishLocked();
  }

  void EndOfRequestsLocked() override {}  // what came is answered

  void EndAllLocked(const absl::Status& reason) override {
    for (const std::shared_ptr<Request>& request : requests_) request->problem.Stop(reason);
  }

  std::int64_t OpenLocked() const override { return static_cast<std::int64_t>(requests_.size()); }

  bool IsFullLocked() const override {
    return OpenLocked() + closings_queued_ >= engine_.config.problems_in_flight_max;
  }

  void TickLocked(absl::Time) override {
    for (const std::shared_ptr<Request>& request : requests_) request->problem.Tick();
  }

  std::int64_t requests_came_ = 0;                 // of the reading side
  std::deque<std::shared_ptr<Request>> requests_;  // guarded by mutex_: those whose answer is not queued, in order
};

}  // namespace

CallReactor* StartModelInfer(Engine& engine, CallContext* context, CallHead head) {
  return StartProblemCall(engine, context, std::move(head), std::make_unique<InferDoor>(std::make_shared<InferHead>()));
}

CallReactor* StartModelStreamInfer(Engine& engine, CallContext* context, CallHead head) {
  return StartCall<InferStream>(engine, context, std::move(head));
}

}  // namespace attnd::server
