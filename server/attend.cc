#include "server/attend.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/attention.h"
#include "core/buffer.h"
#include "server/log.h"
#include "server/receive.h"
#include "server/stopper.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

// One call. It keeps itself alive until gRPC is done with it; the stall watch and the job hold references too.
class AttendCall final : public grpc::ServerUnaryReactor,
                         public Watched,
                         public std::enable_shared_from_this<AttendCall> {
 public:
  AttendCall(Engine& engine, grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : engine_(engine),
        context_(context),
        response_(response),
        arrived_(absl::Now()),
        stopper_(engine.executor, engine.Deadline(arrived_, CallDeadline(*context))) {
    record_.method = "Attend";
    record_.peer = context->peer();
    reservation_ = Reservation(engine.budget.AccountOf(record_.peer));
  }

  void Start(const grpc::ByteBuffer* request) {
    keep_ = shared_from_this();
    engine_.watch.Add(weak_from_this());
    const absl::Status status = CatchBadAlloc([&] { return Begin(*request); });
    if (!status.ok()) End(status);
  }

  void OnCancel() override {
    stopper_.Stop(absl::Now() >= stopper_.token()->deadline()
                      ? absl::DeadlineExceededError("the call's deadline passed before the answer was complete")
                      : absl::CancelledError("the caller cancelled or went away"));
  }

  void OnDone() override {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    record_.total = absl::Now() - arrived_;
    engine_.Done(record_);
    reservation_.ShrinkTo(0);
    work_.reset();
    keep_.reset();  // the last act: this may be gone
  }

  // A peer that does not take its answer loses it.
  void Tick(absl::Time now) override {
    const std::lock_guard lock(mutex_);
    if (!ended_ || done_ || now - end_time_ < absl::Milliseconds(engine_.config.send_stall_ms)) return;
    context_->TryCancel();
  }

 private:
  absl::Status Begin(const grpc::ByteBuffer& request) {
    absl::StatusOr<Lifecycle::Work> work = engine_.lifecycle.Enter();
    if (!work.ok()) return work.status();
    work_ = *std::move(work);
    record_.request_bytes = static_cast<std::int64_t>(request.Length());
    absl::Status status = reservation_.GrowTo("bytes of the message", record_.request_bytes);
    if (!status.ok()) return status;
    auto message = std::make_unique<v1::AttendRequest>();
    // gRPC keeps `request` until the call ends, and nothing reads it again.
    absl::StatusOr<RawMessage> raw = Receive(engine_, const_cast<grpc::ByteBuffer&>(request), *message, reservation_);
    if (!raw.ok()) return raw.status();
    absl::StatusOr<DecodedProblem> decoded = DecodeProblem(*message, DataRule::kWhole);
    if (!decoded.ok()) return decoded.status();
    message.reset();
    absl::StatusOr<Understood> understood = Understand(engine_, decoded->inputs, Delivery::kUnary);
    if (!understood.ok()) return understood.status();
    record_.shape = DescribeProblem(*understood->problem);
    const Demand& demand = understood->demand;
    const absl::Duration left = stopper_.token()->deadline() - absl::Now();
    if (status = engine_.admission.CheckDeadline(demand, left); !status.ok()) return status;
    absl::StatusOr<QueuePlace> place = engine_.budget.Queue(reservation_.account(), demand.memory_bytes);
    if (!place.ok()) return place.status();
    place_ = *std::move(place);
    if (status = reservation_.GrowTo("bytes of memory", demand.memory_bytes); !status.ok()) return status;
    record_.memory_bytes = demand.memory_bytes;
    predicted_ = demand.compute;
    // Only now is anything of the problem's size allocated.
    tensors_ = CopyTensors(*raw, decoded->came, decoded->inputs);
    reservation_.ShrinkTo(demand.memory_bytes);
    absl::StatusOr<Problem> problem = Problem::Create(decoded->inputs, engine_.limits());  // with the addresses
    if (!problem.ok()) return problem.status();
    problem_ = std::make_shared<const Problem>(*std::move(problem));
    if (status = problem_->CheckContents(); !status.ok()) return status;
    statistics_.set_flops(understood->cost.flops_after_exclusion);
    statistics_.set_memory_bytes(demand.memory_bytes);
    Compute(decoded->weight);
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
    submitted_ = absl::Now();
    stopper_.Set(StartAttention(
        problem_, *sink_, engine_.executor, stopper_.token(),
        [self = shared_from_this()](const AttentionReport& report) {
          self->engine_.sender.Do([self, report] { self->Complete(report); });
        },
        JobClass{record_.peer, weight}));
  }

  void Complete(const AttentionReport& report) {
    record_.queued = submitted_ - arrived_;
    engine_.Note(report, predicted_, record_, statistics_);
    if (!report.status.ok()) return End(report.status);
    End(CatchBadAlloc([&] {
      statistics_.set_total_us(absl::ToInt64Microseconds(absl::Now() - arrived_));
      statistics_.set_threads(engine_.executor.threads());
      for (const std::int64_t offset : problem_->q_offset) statistics_.add_q_offset(offset);
      *response_ = EncodeAttendResponse(*problem_, outputs_, statistics_);
      record_.reply_bytes = static_cast<std::int64_t>(response_->Length());
      return absl::OkStatus();
    }));
  }

  void End(const absl::Status& status) {
    record_.status = status;
    outputs_.clear();  // the answer's slices hold what they need
    sink_.reset();
    problem_.reset();
    tensors_.clear();
    place_ = QueuePlace();
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      end_time_ = absl::Now();
    }
    Finish(ToGrpcStatus(status));
  }

  Engine& engine_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  const absl::Time arrived_;
  Stopper stopper_;
  std::shared_ptr<AttendCall> keep_;
  Lifecycle::Work work_;
  Reservation reservation_;
  QueuePlace place_;
  absl::Duration predicted_;
  std::vector<AlignedBuffer<std::byte>> tensors_;  // the problem points into them
  std::shared_ptr<const Problem> problem_;
  std::vector<NamedOutput> outputs_;
  std::unique_ptr<DenseSink> sink_;
  v1::Statistics statistics_;
  absl::Time submitted_;
  RequestRecord record_;

  std::mutex mutex_;
  bool ended_ = false, done_ = false;  // guarded by mutex_, like the next
  absl::Time end_time_;
};

}  // namespace

absl::Time CallDeadline(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture() : absl::FromChrono(deadline);
}

grpc::ServerUnaryReactor* StartAttend(Engine& engine, grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto call = std::make_shared<AttendCall>(engine, context, response);
  call->Start(request);
  return call.get();
}

}  // namespace attnd::server
