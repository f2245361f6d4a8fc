#include "server/attend.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/attention.h"
#include "core/buffer.h"
#include "core/clock.h"
#include "server/log.h"
#include "server/receive.h"
#include "server/stopper.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

class AttendCall final : public UnaryCall {
 public:
  AttendCall(Engine& engine, CallContext* context, CallHead head)
      : UnaryCall(engine, context, std::move(head)),
        stopper_(engine.executor, deadline_),
        reservation_(head_.AccountIn(engine)) {}

 private:
  absl::Status Answer(grpc::ByteBuffer& request) override {
    absl::StatusOr<Lifecycle::Work> work = engine_.lifecycle.Enter();
    if (!work.ok()) return work.status();
    work_ = *std::move(work);
    absl::Status status = reservation_.GrowTo("bytes of the message", record_.request_bytes);
    if (!status.ok()) return status;
    auto message = std::make_unique<v1::AttendRequest>();
    absl::StatusOr<RawMessage> raw = Receive(engine_, request, *message, reservation_);
    if (!raw.ok()) return raw.status();
    absl::StatusOr<DecodedProblem> decoded = Decode(engine_, head_.caller.name(), *message, DataRule::kWhole);
    if (!decoded.ok()) return decoded.status();
    message.reset();
    const absl::StatusOr<std::int64_t> weight = head_.caller.WeightOf(decoded->priority);
    if (!weight.ok()) return weight.status();
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
    tensors_ = CopyTensors(*raw, decoded->came, decoded->inputs);
    reservation_.ShrinkTo(demand.memory_bytes);
    absl::StatusOr<Problem> problem = Problem::Create(decoded->inputs, engine_.limits());  // with the addresses
    if (!problem.ok()) return problem.status();
    problem_ = std::make_shared<const Problem>(*std::move(problem));
    if (status = problem_->CheckContents(); !status.ok()) return status;
    statistics_.set_flops(understood->cost.flops_after_exclusion);
    statistics_.set_memory_bytes(demand.memory_bytes);
    Compute(*weight);
    return absl::OkStatus();
  }

  void Compute(std::int64_t weight) {
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
        [self = std::static_pointer_cast<AttendCall>(shared_from_this())](const AttentionReport& report) {
          self->engine_.sender.Do([self, report] { self->Complete(report); });
        },
        JobClass{head_.caller.AccountName(head_.peer), weight}));
  }

  void Complete(const AttentionReport& report) {
    record_.queued = submitted_ - whole_at_;
    engine_.Note(report, predicted_, record_, statistics_);
    grpc::ByteBuffer response;
    const absl::Status status = report.status.ok() ? CatchBadAlloc([&] {
      statistics_.set_total_us(absl::ToInt64Microseconds(Now() - whole_at_));
      statistics_.set_threads(engine_.executor.threads());
      for (const std::int64_t offset : problem_->q_offset) statistics_.add_q_offset(offset);
      response = EncodeAttendResponse(*problem_, outputs_, statistics_);
      return absl::OkStatus();
    })
                                                   : report.status;
    FreeProblem();
    if (status.ok()) {
      End(response);
    } else {
      End(status);
    }
  }

  void Stop(absl::Status reason) override { stopper_.Stop(std::move(reason)); }

  void Release() override {
    reservation_.ShrinkTo(0);
    work_.reset();
  }

  // All but what the answer's slices hold.
  void FreeProblem() {
    outputs_.clear();
    sink_.reset();
    problem_.reset();
    tensors_.clear();
    held_.clear();
    place_ = QueuePlace();
  }

  Stopper stopper_;
  Lifecycle::Work work_;
  Reservation reservation_;
  QueuePlace place_;
  absl::Duration predicted_;
  std::vector<AlignedBuffer<std::byte>> tensors_;  // the problem points into them, and into what is held
  Held held_;
  std::shared_ptr<const Problem> problem_;
  std::vector<NamedOutput> outputs_;
  std::unique_ptr<DenseSink> sink_;
  v1::Statistics statistics_;
  absl::Time submitted_;
};

}  // namespace

CallReactor* StartAttend(Engine& engine, CallContext* context, CallHead head) {
  auto call = std::make_shared<AttendCall>(engine, context, std::move(head));
  call->Start();
  return call.get();
}

}  // namespace attnd::server
