#include "server/stream_problem.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"

namespace attnd::server {
namespace {

constexpr std::size_t kPathBytesMax = 64;

absl::Status Prefixed(absl::string_view path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

StreamProblem::StreamProblem(Engine& engine, std::uint64_t id, absl::Time call_deadline, std::string client,
                             BlockWriter& writer)
    : last_piece(absl::Now()),
      engine_(engine),
      id_(id),
      arrived_(last_piece),
      complete_at_(last_piece),
      stopper_(engine.executor, engine.Deadline(last_piece, call_deadline)),
      sink_(id_, engine.config.block_bytes, writer),
      job_class_{std::move(client)} {}

absl::StatusOr<std::shared_ptr<StreamProblem>> StreamProblem::Open(Engine& engine,
                                                                   const v1::AttendStreamRequest& message,
                                                                   Received received, absl::Time call_deadline,
                                                                   std::string client, BlockWriter& writer) {
  std::shared_ptr<StreamProblem> problem(
      new StreamProblem(engine, message.problem_id(), call_deadline, std::move(client), writer));
  if (absl::Status status = problem->Begin(message.header(), std::move(received)); !status.ok()) return status;
  return problem;
}

absl::Status StreamProblem::Begin(const v1::AttendRequest& header, Received received) {
  absl::StatusOr<DecodedProblem> decoded = DecodeProblem(header, DataRule::kWholeOrLater);
  if (!decoded.ok()) return decoded.status();
  inputs_ = std::move(decoded->inputs);
  job_class_.weight = decoded->weight;
  absl::StatusOr<Understood> understood = Understand(engine_, inputs_, Delivery::kStream);
  if (!understood.ok()) return understood.status();
  shape_ = DescribeProblem(*understood->problem);
  const absl::Duration left = stopper_.token()->deadline() - absl::Now();
  if (absl::Status status = engine_.admission.CheckDeadline(understood->demand, left); !status.ok()) return status;
  absl::StatusOr<Reservation> reservation = engine_.admission.Admit(understood->demand, std::move(received.held));
  if (!reservation.ok()) return reservation.status();
  reservation_ = *std::move(reservation);
  input_bytes_ = understood->cost.input_bytes;
  outputs_bytes_ = understood->demand.outputs_bytes;

  // Only now is anything of the problem's size allocated.
  tensors_ = CopyTensors(received.raw, decoded->came, inputs_);
  reservation_.ShrinkTo(understood->demand.memory_bytes);
  ForEachTensor(inputs_, [this](absl::string_view path, InputTensor& tensor) {
    if (tensor.data != nullptr) return;
    const std::int64_t bytes = TensorBytes(tensor);
    pending_.push_back({std::string(path), &tensor, AlignedBuffer<std::byte>(bytes), ByteCover(bytes)});
    tensor.data = pending_.back().buffer.data();
  });
  missing_ = pending_.size();

  v1::Statistics& statistics = *closing_.mutable_statistics();
  statistics.set_flops(understood->cost.flops_after_exclusion);
  statistics.set_memory_bytes(understood->demand.memory_bytes);
  statistics.set_threads(engine_.executor.threads());
  for (const std::int64_t offset : understood->problem->q_offset) statistics.add_q_offset(offset);
  AddOutputShapes(*understood->problem, closing_);
  return absl::OkStatus();
}

absl::Status StreamProblem::Accept(const v1::TensorPiece& piece, RawRequest& raw) {
  for (Pending& pending : pending_) {
    if (pending.path != piece.tensor()) continue;
    const DataExtent data = ExtentOf(piece.data());
    if (absl::Status status = pending.cover.Add(piece.offset_bytes(), data.bytes); !status.ok()) {
      return Prefixed(pending.path, status);
    }
    raw.CopyOut({{data, pending.buffer.data() + piece.offset_bytes()}});
    if (pending.cover.complete() && --missing_ == 0) complete_at_ = absl::Now();
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
  if (absl::Status status = engine_.CheckQueue(); !status.ok()) return status;
  problem_ = understood->problem;
  submitted_ = absl::Now();
  stopper_.Set(StartAttention(problem_, sink_, engine_.executor, stopper_.token(), std::move(done), job_class_));
  return absl::OkStatus();
}

std::shared_ptr<Reservation> StreamProblem::Release() {
  pending_.clear();
  inputs_ = {};
  problem_.reset();
  tensors_.clear();
  reservation_.ShrinkTo(outputs_bytes_);
  return std::make_shared<Reservation>(std::move(reservation_));
}

}  // namespace attnd::server
