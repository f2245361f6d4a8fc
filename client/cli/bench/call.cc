#include "client/cli/bench/call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "attnd/v1/attention.grpc.pb.h"
#include "client/cli/bench/kserve.h"
#include "client/cli/bench/pacer.h"
#include "client/decode.h"

namespace attnd::client {

namespace {

// What a reply says beside its tensors.
void Fill(const v1::Statistics& statistics, const WorkItem& item, Outcome* outcome) {
  outcome->queue_us = statistics.queue_us();
  outcome->compute_us = statistics.compute_us();
  outcome->flops = static_cast<double>(statistics.flops());
  outcome->tensor_bytes = item.tensor_bytes;
  outcome->tokens = item.tokens;
}

absl::Status WrongSize(std::int64_t got, const WorkItem& item) {
  return absl::InternalError(absl::StrCat("the server answered ", got, " bytes of output, not ", item.output_bytes));
}

// A call of Attend.
class UnaryCall : public Event {
 public:
  UnaryCall(Request request, absl::Duration timeout, const SeeReply& see) : request_(std::move(request)), see_(see) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  }

  void Start(grpc::GenericStub& stub, grpc::CompletionQueue& queue) {
    static const std::string kNative = MethodName("Attend"), kKserve = kModelInfer;
    const grpc::ByteBuffer message =
        request_.own ? EncodeAttend(request_.own->shared_request()) : request_.item->message;
    reader_ = stub.PrepareUnaryCall(&context_, request_.item->kserve ? kKserve : kNative, message, &queue);
    request_.sent_ns = NowNs();
    reader_->StartCall();
    reader_->Finish(&reply_, &status_, this);
  }

  void Happened(bool /*ok*/) override {
    Outcome outcome;
    outcome.done_ns = NowNs();
    outcome.due_ns = request_.due_ns;
    outcome.sent_ns = request_.sent_ns;
    outcome.status = FromGrpc(status_);
    if (outcome.status.ok()) Read(&outcome);
    const auto done = std::move(request_.done);
    delete this;
    done(outcome);
  }

 private:
  void Read(Outcome* outcome) {
    const WorkItem& item = *request_.item;
    if (request_.own) {
      const absl::StatusOr<Answer> answer = DecodeAnswer(*request_.own, reply_);
      const std::int64_t received = outcome->done_ns;
      outcome->done_ns = NowNs();
      outcome->client_ns = outcome->done_ns - received;
      outcome->status = answer.status();
      if (answer.ok()) Fill(answer->statistics, item, outcome);
      return;
    }
    v1::AttendResponse response;
    absl::StatusOr<std::int64_t> bytes = 0;
    if (item.kserve) {
      bytes = ModelOutputBytes(reply_);
    } else {
      see_(item, reply_);
      const absl::StatusOr<RawMessage> raw = SplitReply(reply_, response);
      bytes = raw.ok() ? absl::StatusOr<std::int64_t>(ExtentOf(response.output().data()).bytes) : raw.status();
    }
    outcome->status = bytes.ok() && *bytes != item.output_bytes ? WrongSize(*bytes, item) : bytes.status();
    if (outcome->status.ok()) Fill(response.statistics(), item, outcome);  // the other protocol has none
  }

  Request request_;
  const SeeReply& see_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader_;
  grpc::ByteBuffer reply_;
  grpc::Status status_;
};

// A block's elements as the answer holds them.
std::string Converted(const Problem& problem, const v1::Block& block, const std::string& sent) {
  const auto from = static_cast<DType>(block.dtype());
  const DType to = problem.AnswerDType(block.kind(), from);
  if (!IsFloat(from) || from == to) return sent;
  const std::int64_t elements = static_cast<std::int64_t>(sent.size()) / ElementBytes(from);
  std::string converted(static_cast<std::size_t>(elements * ElementBytes(to)), '\0');
  ConvertElements(from, absl::string_view(sent).substr(0, static_cast<std::size_t>(elements * ElementBytes(from))), to,
                  converted.data());
  return converted;
}

}  // namespace

std::int64_t NowNs() { return SteadyClock().Now(); }

std::string MethodName(absl::string_view method) {
  return absl::StrCat("/", v1::AttentionService::service_full_name(), "/", method);
}

void StartUnary(Request request, grpc::GenericStub& stub, grpc::CompletionQueue& queue, absl::Duration timeout,
                const SeeReply& see) {
  auto* call = new UnaryCall(std::move(request), timeout, see);  // its last event deletes it
  call->Start(stub, queue);
}

void StreamLine::SetDeadline(absl::Time deadline) {
  const std::scoped_lock lock(mutex_);
  deadline_ = deadline;
}

void StreamLine::Send(Request request) {
  const std::scoped_lock lock(mutex_);
  if (call_ == nullptr || call_->ending) Open();
  Call& call = *call_;
  const std::uint64_t id = next_id_++;
  const StreamParts own = request.own ? StreamParts(*request.own, ClientOptions().piece_bytes) : StreamParts();
  (request.own ? own : request.item->parts).Encode(id, [&](const grpc::ByteBuffer& message, std::int64_t) {
    call.writes.push_back(message);
    return true;
  });
  request.sent_ns = NowNs();
  call.open.emplace(id, Carried{std::move(request), 0, {}});
  WriteNext(call);
}

void StreamLine::Close() {
  std::unique_lock lock(mutex_);
  for (const std::unique_ptr<Call>& call : calls_) {
    if (call->ending) continue;
    call->ending = true;
    call->context.TryCancel();
    FinishIfIdle(*call);
  }
  all_finished_.wait(
      lock, [&] { return std::all_of(calls_.begin(), calls_.end(), [](const auto& call) { return call->finished; }); });
  calls_.clear();
  call_ = nullptr;
}

void StreamLine::Open() {
  calls_.erase(std::remove_if(calls_.begin(), calls_.end(), [](const auto& old) { return old->finished; }),
               calls_.end());
  calls_.push_back(std::make_unique<Call>());
  Call* call = call_ = calls_.back().get();
  call->context.set_deadline(absl::ToChronoTime(deadline_));
  call->on_start = std::make_unique<Hook>([this, call](bool ok) { Started(*call, ok); });
  call->on_write = std::make_unique<Hook>([this, call](bool ok) { Wrote(*call, ok); });
  call->on_read = std::make_unique<Hook>([this, call](bool ok) { Read(*call, ok); });
  call->on_finish = std::make_unique<Hook>([this, call](bool) { Finished(*call); });
  call->stream = stub_.PrepareCall(&call->context, MethodName("AttendStream"), &queue_);
  ++call->operations;
  call->stream->StartCall(call->on_start.get());
}

void StreamLine::WriteNext(Call& call) {
  if (!call.started || call.writing || call.ending || call.writes.empty()) return;
  call.writing = true;
  ++call.operations;
  grpc::ByteBuffer message;
  message.Swap(&call.writes.front());
  call.writes.pop_front();
  call.stream->Write(message, call.on_write.get());
}

// When nothing else is under way on a call that is over, asks why.
void StreamLine::FinishIfIdle(Call& call) {
  if (!call.ending || call.operations > 0 || call.finishing) return;
  call.finishing = true;
  ++call.operations;
  call.stream->Finish(&call.status, call.on_finish.get());
}

void StreamLine::Started(Call& call, bool ok) {
  const std::scoped_lock lock(mutex_);
  --call.operations;
  call.started = ok;
  if (!ok) {
    call.ending = true;
  } else {
    ++call.operations;
    call.stream->Read(&call.read, call.on_read.get());
    WriteNext(call);
  }
  FinishIfIdle(call);
}

void StreamLine::Wrote(Call& call, bool ok) {
  const std::scoped_lock lock(mutex_);
  --call.operations;
  call.writing = false;
  if (!ok) call.ending = true;
  WriteNext(call);
  FinishIfIdle(call);
}

void StreamLine::Read(Call& call, bool ok) {
  Outcome outcome;
  outcome.done_ns = NowNs();
  std::function<void(const Outcome&)> done;
  {
    const std::scoped_lock lock(mutex_);
    --call.operations;
    if (ok) {
      done = Take(call, &outcome);
      if (!call.ending) {
        ++call.operations;
        call.stream->Read(&call.read, call.on_read.get());
      }
    } else {
      call.ending = true;
    }
    FinishIfIdle(call);
  }
  if (done) done(outcome);
}

// One message. Returns whom to tell when it was a problem's last.
std::function<void(const Outcome&)> StreamLine::Take(Call& call, Outcome* outcome) {
  v1::AttendStreamResponse response;
  absl::StatusOr<RawMessage> raw = SplitReply(call.read, response);
  const auto found = raw.ok() ? call.open.find(response.problem_id()) : call.open.end();
  if (found == call.open.end()) {
    call.broken = raw.ok() ? absl::InternalError(absl::StrCat("the server answered problem ", response.problem_id(),
                                                              ", which is not open"))
                           : raw.status();
    call.ending = true;
    call.context.TryCancel();
    return nullptr;
  }
  Carried& open = found->second;
  if (response.has_block()) {
    const v1::Block& block = response.block();
    const DataExtent data = ExtentOf(block.data());
    open.output_bytes += data.bytes;
    if (open.request.own) {
      std::string sent;
      raw->TakeOut({data}, [&](std::size_t, absl::string_view part) { sent.append(part.data(), part.size()); });
      open.converted += Converted(*open.request.own, block, sent);
    }
    return nullptr;
  }
  const WorkItem& item = *open.request.item;
  outcome->due_ns = open.request.due_ns;
  outcome->sent_ns = open.request.sent_ns;
  const v1::ProblemClosing& closing = response.closing();
  if (closing.has_error()) {
    outcome->status = absl::Status(static_cast<absl::StatusCode>(closing.error().code()), closing.error().message());
  } else if (open.output_bytes != item.output_bytes) {
    outcome->status = WrongSize(open.output_bytes, item);
  } else {
    Fill(closing.statistics(), item, outcome);
  }
  std::function<void(const Outcome&)> done = std::move(open.request.done);
  call.open.erase(found);
  return done;
}

void StreamLine::Finished(Call& call) {
  std::map<std::uint64_t, Carried> left;
  absl::Status status;
  {
    const std::scoped_lock lock(mutex_);
    --call.operations;
    left.swap(call.open);
    status = call.broken.ok() ? FromGrpc(call.status) : call.broken;
    if (status.ok()) status = absl::UnavailableError("the server ended the stream in the middle of a problem");
    if (call_ == &call) call_ = nullptr;
    call.finished = true;
    all_finished_.notify_all();
  }
  for (auto& [id, open] : left) {
    Outcome outcome;
    outcome.due_ns = open.request.due_ns;
    outcome.sent_ns = open.request.sent_ns;
    outcome.done_ns = NowNs();
    outcome.status = status;
    open.request.done(outcome);
  }
}

}  // namespace attnd::client
