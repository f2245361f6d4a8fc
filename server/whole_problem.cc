#include "server/whole_problem.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

class ProblemCall final : public UnaryCall {
 public:
  ProblemCall(Engine& engine, CallContext* context, CallHead head, std::unique_ptr<Door> door)
      : UnaryCall(engine, context, std::move(head)),
        problem_(engine, head_, deadline_, std::move(door), record_, row_) {}

 private:
  absl::Status Answer(grpc::ByteBuffer& request) override {
    return problem_.Start(request, whole_at_,
                          [self = std::static_pointer_cast<ProblemCall>(shared_from_this())](
                              const absl::StatusOr<grpc::ByteBuffer>& answer) {
                            if (answer.ok()) return self->End(*answer);
                            self->End(answer.status());
                          });
  }
  void Stop(absl::Status reason) override { problem_.Stop(std::move(reason)); }
  void TickAnswering() override { problem_.Tick(); }
  void Release() override { problem_.Release(); }

  WholeProblem problem_;
};

}  // namespace

WholeProblem::WholeProblem(Engine& engine, const CallHead& head, absl::Time deadline, std::unique_ptr<Door> door,
                           RequestRecord& record, RequestTable::Row& row)
    : engine_(engine),
      head_(head),
      door_(std::move(door)),
      record_(record),
      row_(row),
      stopper_(engine.executor, deadline),
      reservation_(head.AccountIn(engine)) {}

absl::Status WholeProblem::Start(grpc::ByteBuffer& message, absl::Time whole_at, Done done) {
  whole_at_ = whole_at;
  std::int64_t weight = 0;
  if (absl::Status status = Admit(message, weight); !status.ok()) return Decided(status);
  for (const OutputKind kind : ReplyOrder(*problem_)) outputs_.push_back({kind, {}});
  sink_ = std::make_unique<DenseSink>(*problem_, [this](OutputKind kind, std::int64_t bytes) -> std::byte* {
    for (NamedOutput& output : outputs_) {
      if (output.kind != kind) continue;
      auto buffer = std::make_shared<AlignedBuffer<std::byte>>(bytes);
      output.data = {buffer, buffer->data(), bytes};
      return buffer->data();
    }
    return nullptr;  // not wanted: the sink asks only for what is
  });
  row_.SetStage(Stage::kComputing);
  submitted_ = Now();
  stopper_.Set(StartAttention(
      problem_, *sink_, engine_.executor, stopper_.token(),
      [this, done = std::move(done)](const AttentionReport& report) {
        engine_.sender.Do([this, done, report] { done(Complete(report)); });
      },
      JobClass{head_.caller.AccountName(head_.peer), weight}));
  return absl::OkStatus();
}

absl::Status WholeProblem::Admit(grpc::ByteBuffer& message, std::int64_t& weight) {
  absl::StatusOr<Lifecycle::Work> work = engine_.lifecycle.Enter();
  if (!work.ok()) return work.status();
  work_ = *std::move(work);
  absl::Status status = reservation_.GrowTo("bytes of the message", record_.request_bytes);
  if (!status.ok()) return status;
  absl::StatusOr<Asked> asked = door_->Read(engine_, message, reservation_, record_);
  if (!asked.ok()) return asked.status();
  if (asked->timeout < absl::InfiniteDuration()) stopper_.EndBy(whole_at_ + asked->timeout);
  absl::StatusOr<DecodedProblem> decoded = Decode(engine_, head_.caller.name(), *asked->request, DataRule::kWhole);
  if (!decoded.ok()) return decoded.status();
  asked->request.reset();
  const absl::StatusOr<std::int64_t> allowed_weight = head_.caller.WeightOf(decoded->priority);
  if (!allowed_weight.ok()) return allowed_weight.status();
  weight = *allowed_weight;
  absl::StatusOr<Understood> understood = Understand(engine_, decoded->inputs, Delivery::kUnary);
  if (!understood.ok()) return understood.status();
  record_.shape = DescribeProblem(*understood->problem);
  row_.SetShape(record_.shape);
  const Demand& demand = understood->demand;
  const absl::Duration left = stopper_.token()->deadline() - Now();
  if (status = engine_.admission.CheckDeadline(demand, left); !status.ok()) return status;
  absl::StatusOr<QueuePlace> place = engine_.budget.Queue(reservation_.account(), demand.memory_bytes);
  if (!place.ok()) return place.status();
  place_ = *std::move(place);
  if (status = reservation_.GrowTo("bytes of memory", demand.memory_bytes); !status.ok()) return status;
  record_.memory_bytes = demand.memory_bytes;
  predicted_ = demand.compute;
  // Only now is anything of the problem's size allocated.
  held_ = std::move(decoded->held);
  tensors_ = CopyTensors(asked->raw, decoded->came, decoded->inputs);
  reservation_.ShrinkTo(demand.memory_bytes);
  absl::StatusOr<Problem> problem = Problem::Create(decoded->inputs, engine_.limits());  // with the addresses
  if (!problem.ok()) return problem.status();
  problem_ = std::make_shared<const Problem>(*std::move(problem));
  if (status = problem_->CheckContents(); !status.ok()) return status;
  statistics_.set_flops(understood->cost.flops_after_exclusion);
  statistics_.set_memory_bytes(demand.memory_bytes);
  return absl::OkStatus();
}

absl::StatusOr<grpc::ByteBuffer> WholeProblem::Complete(const AttentionReport& report) {
  record_.read = submitted_ - whole_at_;
  record_.queued = record_.read;
  engine_.Note(report, predicted_, record_, statistics_);
  grpc::ByteBuffer response;
  const absl::Status status = report.status.ok() ? CatchBadAlloc([&] {
    statistics_.set_total_us(absl::ToInt64Microseconds(Now() - whole_at_));
    statistics_.set_threads(engine_.executor.threads());
    for (const std::int64_t offset : problem_->q_offset) statistics_.add_q_offset(offset);
    response = door_->Write(*problem_, outputs_, statistics_);
    return absl::OkStatus();
  })
                                                 : report.status;
  FreeProblem();
  if (absl::Status said = Decided(status); !said.ok()) return said;
  return response;
}

absl::Status WholeProblem::Decided(const absl::Status& status) {
  if (!record_.model.empty()) {
    record_.status = status;
    record_.total = Now() - whole_at_;
    engine_.model_statistics.Count(record_);
  }
  return status.ok() ? status : door_->InItsWords(status);
}

void WholeProblem::Release() {
  reservation_.ShrinkTo(0);
  work_.reset();
}

// All but what the answer's slices hold.
void WholeProblem::FreeProblem() {
  outputs_.clear();
  sink_.reset();
  problem_.reset();
  tensors_.clear();
  held_.clear();
  place_ = QueuePlace();
}

CallReactor* StartProblemCall(Engine& engine, CallContext* context, CallHead head, std::unique_ptr<Door> door) {
  return StartCall<ProblemCall>(engine, context, std::move(head), std::move(door));
}

}  // namespace attnd::server
