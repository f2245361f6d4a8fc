#include "server/stream_problem.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "server/wire/encode.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

constexpr std::size_t kPathBytesMax = 64;
constexpr std::int64_t kEarlyBytesMin = 1 << 20;  // what is smaller is there in a fraction of a millisecond
constexpr std::int64_t kNewsBytesMin = 64 << 10;  // a running job is told of

}  // namespace

StreamProblem::StreamProblem(Engine& engine, std::uint64_t id, const CallHead& head, BlockWriter& writer)
    : last_piece(Now()),
      engine_(engine),
      id_(id),
      opened_at_(last_piece),
      stopper_(engine.executor, engine.Deadline(opened_at_, head.deadline)),
      sink_(id_, engine.config.block_bytes, writer),
      job_class_{head.caller.AccountName(head.peer)},
      row_(engine.requests, head.method, head.peer, head.caller.name()) {}

absl::StatusOr<std::shared_ptr<StreamProblem>> StreamProblem::Open(Engine& engine,
                                                                   const v1::AttendStreamRequest& message,
                                                                   RawMessage raw, Reservation held,
                                                                   const CallHead& head, BlockWriter& writer) {
  std::shared_ptr<StreamProblem> problem(new StreamProblem(engine, message.problem_id(), head, writer));
  absl::Status status = problem->Begin(message.header(), std::move(raw), std::move(held), head.caller);
  if (!status.ok()) return status;
  return problem;
}

absl::Status StreamProblem::Begin(const v1::AttendRequest& header, RawMessage raw, Reservation held,
                                  const Caller& caller) {
  reservation_ = std::move(held);
  absl::StatusOr<Pass> entered = caller.Enter();
  if (!entered.ok()) return entered.status();
  pass = *std::move(entered);
  absl::StatusOr<DecodedProblem> decoded = Decode(engine_, caller.name(), header, DataRule::kWholeOrLater);
  if (!decoded.ok()) return decoded.status();
  inputs_ = std::move(decoded->inputs);
  held_ = std::move(decoded->held);
  const absl::StatusOr<std::int64_t> weight = caller.WeightOf(decoded->priority);
  if (!weight.ok()) return weight.status();
  job_class_.weight = *weight;
  absl::StatusOr<Understood> understood = Understand(engine_, inputs_, Delivery::kStream);
  if (!understood.ok()) return understood.status();
  shape_ = DescribeProblem(*understood->problem);
  row_.SetShape(shape_);
  const absl::Duration left = stopper_.token()->deadline() - Now();
  if (absl::Status status = engine_.admission.CheckDeadline(understood->demand, left); !status.ok()) return status;
  const Demand& demand = understood->demand;
  if (absl::Status status = reservation_.GrowTo("bytes of memory", demand.memory_bytes); !status.ok()) return status;
  input_bytes_ = understood->cost.input_bytes;
  outputs_bytes_ = demand.outputs_bytes;
  predicted_ = demand.compute;

  // Only now is anything of the problem's size allocated.
  tensors_ = CopyTensors(raw, decoded->came, inputs_);
  reservation_.ShrinkTo(demand.memory_bytes);
  ForEachTensor(inputs_, [this](absl::string_view path, InputTensor& tensor) {
    const std::int64_t bytes = TensorBytes(tensor);
    std::atomic<std::int64_t>* const arrived = ArrivedOf(path);
    if (tensor.data != nullptr) {
      if (arrived != nullptr) *arrived = bytes;
      return;
    }
    pending_.push_back({std::string(path), &tensor, AlignedBuffer<std::byte>(bytes), ByteCover(bytes), arrived});
    tensor.data = pending_.back().buffer.data();
    if (arrived == nullptr) ++missing_others_;
  });
  missing_ = pending_.size();
  if (complete()) complete_at_ = startable_at_ = Now();
  early_ = !understood->problem->reference && input_bytes_ >= kEarlyBytesMin;

  v1::Statistics& statistics = *closing_.mutable_statistics();
  statistics.set_flops(understood->cost.flops_after_exclusion);
  statistics.set_memory_bytes(demand.memory_bytes);
  statistics.set_threads(engine_.executor.threads());
  for (const std::int64_t offset : understood->problem->q_offset) statistics.add_q_offset(offset);
  AddOutputShapes(*understood->problem, closing_);
  return absl::OkStatus();
}

absl::Status StreamProblem::Accept(const v1::TensorPiece& piece, RawMessage& raw) {
  for (Pending& pending : pending_) {
    if (pending.path != piece.tensor()) continue;
    const DataExtent data = ExtentOf(piece.data());
    if (absl::Status status = pending.cover.Add(piece.offset_bytes(), data.bytes); !status.ok()) {
      return AtField(pending.path, status);
    }
    raw.CopyOut({{data, pending.buffer.data() + piece.offset_bytes()}});
    if (pending.cover.complete()) {
      if (pending.arrived == nullptr) --missing_others_;
      if (--missing_ == 0) complete_at_ = Now();
    }
    if (pending.arrived != nullptr) pending.arrived->store(pending.cover.prefix(), std::memory_order_release);
    if (can_start()) startable_at_ = std::min(startable_at_, Now());
    // No word for each crumb.
    if ((news_bytes_ += data.bytes) < kNewsBytesMin && !pending.cover.complete()) return absl::OkStatus();
    news_bytes_ = 0;
    stopper_.Wake();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("piece.tensor: \"", absl::CEscape(piece.tensor().substr(0, kPathBytesMax)),
                   "\", expected a tensor of the header that has elements and no data there"));
}

std::string StreamProblem::Missing() const {
  for (const Pending& pending : pending_) {
    if (pending.cover.complete()) continue;
    return absl::StrCat(pending.path, ": ", pending.cover.came(), " of ", pending.cover.bytes(), " bytes came");
  }
  return "every byte came";
}

absl::Status StreamProblem::Run(std::function<void(const AttentionReport&)> done) {
  absl::StatusOr<Understood> understood = Understand(engine_, inputs_, Delivery::kStream);
  if (!understood.ok()) return understood.status();
  if (absl::Status status = understood->problem->CheckContents(); !status.ok()) return status;
  absl::StatusOr<QueuePlace> place = engine_.budget.Queue(reservation_.account(), memory_bytes());
  if (!place.ok()) return place.status();
  place_ = *std::move(place);
  problem_ = understood->problem;
  waited_ = Now() - startable_at_;
  row_.SetStage(Stage::kComputing);
  stopper_.Set(StartAttention(problem_, sink_, engine_.executor, stopper_.token(), std::move(done), job_class_,
                              complete() ? nullptr : &arrived_));
  return absl::OkStatus();
}

std::atomic<std::int64_t>* StreamProblem::ArrivedOf(absl::string_view path) {
  if (path == "q") return &arrived_.q;
  if (path == "k") return &arrived_.k;
  if (path == "v") return &arrived_.v;
  return path == "x" ? &arrived_.x : nullptr;
}

std::shared_ptr<Reservation> StreamProblem::Release() {
  pending_.clear();
  inputs_ = {};
  problem_.reset();
  tensors_.clear();
  held_.clear();
  place_ = QueuePlace();
  reservation_.ShrinkTo(outputs_bytes_);
  return std::make_shared<Reservation>(std::move(reservation_));
}

}  // namespace attnd::server
