#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/decode.h"
#include "client/encode.h"
#include "client/join.h"
#include "client/stream_impl.h"

namespace attnd::client {

// One problem on its way through the stream.
struct Stream::Impl::Call {
  const Problem& problem;
  const StreamCall& asked;
  std::uint64_t id = 0;
  StreamParts parts = {};
  std::atomic<bool> stop{false};
  bool closed = false;  // the closing message came
  bool ended = false;   // the stream ended instead
  std::mutex progress_mutex = {};
  std::int64_t sent_bytes = 0, received_bytes = 0;  // under progress_mutex

  bool HandsOver(v1::OutputKind kind) const {
    return asked.on_block && std::count(asked.by_block.begin(), asked.by_block.end(), kind) > 0;
  }

  void Progress(std::int64_t sent, std::int64_t received) {
    if (!asked.on_progress) return;
    const std::scoped_lock lock(progress_mutex);
    sent_bytes += sent;
    received_bytes += received;
    asked.on_progress(sent_bytes, received_bytes);
  }
};

Stream::Impl::Impl(Pool::Place connection, absl::Time deadline, std::int64_t piece_bytes, bool last)
    : connection_(std::move(connection)), piece_bytes_(std::max<std::int64_t>(piece_bytes, 1)), last_(last) {
  context_.set_deadline(absl::ToChronoTime(deadline));
  stream_.reset(grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
      connection_->channel.get(), connection_->attend_stream, &context_));
}

Stream::Impl::~Impl() {
  if (!alive_) return;
  stream_->WritesDone();
  context_.TryCancel();
  stream_->Finish();
}

absl::Status Stream::Impl::Finish() {
  alive_ = false;
  const absl::Status status = FromGrpc(stream_->Finish());
  return status.ok() ? absl::UnavailableError("the server ended the stream in the middle of a problem") : status;
}

void Stream::Impl::Send(Call& call) {
  call.parts.Encode(call.id, [&](const grpc::ByteBuffer& message, std::int64_t piece_bytes) {
    if (call.stop.load(std::memory_order_relaxed) || !stream_->Write(message)) return false;
    if (piece_bytes > 0) call.Progress(piece_bytes, 0);
    return true;
  });
}

absl::StatusOr<Answer> Stream::Impl::Receive(Call& call) {
  BlockPlacer placer(call.problem);
  std::map<v1::OutputKind, Array> arrays;
  v1::AttendStreamResponse response;
  grpc::ByteBuffer buffer;
  while (true) {
    if (!stream_->Read(&buffer)) {
      call.ended = true;
      return absl::UnavailableError("");  // Attend asks the stream why
    }
    absl::StatusOr<RawMessage> raw = SplitReply(buffer, response);
    if (!raw.ok()) return raw.status();
    if (response.problem_id() != call.id) {
      return absl::InternalError(
          absl::StrCat("the server answered problem ", response.problem_id(), ", open is ", call.id));
    }
    if (response.has_closing()) break;
    v1::Block& block = *response.mutable_block();
    const DataExtent data = ExtentOf(block.data());
    const absl::StatusOr<BlockPlace> place = placer.Place(block, data.bytes);
    if (!place.ok()) return place.status();
    if (call.HandsOver(block.kind())) {
      block.mutable_data()->clear();
      raw->TakeOut(
          {data}, [&](std::size_t, absl::string_view part) { block.mutable_data()->append(part.data(), part.size()); });
      const absl::Status status = call.asked.on_block(block);
      if (!status.ok()) return status;
    } else {
      Array& array = arrays[block.kind()];
      if (array.bytes.empty()) {
        array.dtype = call.problem.AnswerDType(block.kind(), place->dtype);
        array.shape = place->layout->shape;
        const absl::StatusOr<std::int64_t> bytes = ByteCount(array.dtype, array.shape);
        if (!bytes.ok()) return bytes.status();
        array.bytes.reserve(static_cast<std::size_t>(*bytes));
      }
      ArrayWriter writer(place->dtype, array, place->first, block.columns(), place->row_stride);
      raw->TakeOut({data}, [&](std::size_t, absl::string_view part) { writer.Take(part); });
    }
    call.Progress(0, data.bytes);
  }
  call.closed = true;
  const v1::ProblemClosing& closing = response.closing();
  if (closing.has_error()) {
    return absl::Status(static_cast<absl::StatusCode>(closing.error().code()), closing.error().message());
  }
  const absl::Status complete = placer.CheckComplete(closing);
  if (!complete.ok()) return complete;
  Answer answer;
  answer.statistics = closing.statistics();
  const auto take = [&](v1::OutputKind kind) -> absl::StatusOr<Array> {
    if (Array& array = arrays[kind]; !array.bytes.empty()) {
      array.bytes.resize(static_cast<std::size_t>(*ByteCount(array.dtype, array.shape)));
      return std::move(array);
    }
    // No block came: an empty output, or one whose blocks went elsewhere.
    for (const v1::OutputShape& output : closing.outputs()) {
      if (output.kind() != kind) continue;
      const absl::StatusOr<OutputLayout> layout = call.problem.LayoutOf(kind);
      if (!layout.ok()) return layout.status();
      return Array{call.problem.AnswerDType(kind, static_cast<DType>(output.dtype())), layout->shape, {}};
    }
    return absl::InternalError(absl::StrCat("the server left out ", Name(kind)));
  };
  absl::StatusOr<Array> output = take(v1::OUTPUT_KIND_OUTPUT);
  if (!output.ok()) return output.status();
  answer.output = *std::move(output);
  for (const int kind : call.problem.request().outputs()) {
    const auto extra = static_cast<v1::OutputKind>(kind);
    if (call.HandsOver(extra)) continue;
    absl::StatusOr<Array> array = take(extra);
    if (!array.ok()) return array.status();
    answer.extras.emplace_back(extra, *std::move(array));
  }
  return answer;
}

absl::StatusOr<Answer> Stream::Impl::Attend(const Problem& problem, const StreamCall& asked) {
  if (!alive_) return absl::FailedPreconditionError("the stream has ended; open another");
  Call call{.problem = problem, .asked = asked, .id = next_id_++};
  call.parts = StreamParts(problem, piece_bytes_);
  std::thread sender;
  if (call.parts.whole()) {
    Send(call);
  } else {
    sender = std::thread([&] { Send(call); });
  }
  absl::StatusOr<Answer> answer = Receive(call);
  call.stop.store(true, std::memory_order_relaxed);
  // Only a closing message leaves the stream in a known state. A refusal may come while pieces are still on their way:
  // the server drops them, but where no other problem follows nobody needs to wait for that.
  if ((!call.closed && !call.ended) || (last_ && call.closed && !answer.ok())) context_.TryCancel();
  if (sender.joinable()) sender.join();
  if (call.ended) return Finish();
  if (!call.closed) Finish().IgnoreError();
  return answer;
}

Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream::~Stream() = default;
absl::StatusOr<Answer> Stream::Attend(const Problem& problem, const StreamCall& call) {
  return impl_->Attend(problem, call);
}
bool Stream::alive() const { return impl_->alive_; }
void Stream::Cancel() { impl_->context_.TryCancel(); }

}  // namespace attnd::client
