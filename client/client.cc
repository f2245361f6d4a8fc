#include "client/client.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/async.h"
#include "client/channel.h"
#include "client/client_state.h"
#include "client/decode.h"
#include "client/encode.h"
#include "client/stream_impl.h"
#include "client/wire.h"

namespace attnd::client {

namespace {

// Protobuf cannot serialise more.
constexpr std::int64_t kMessageBytesMax = std::numeric_limits<std::int32_t>::max();

}  // namespace

const Array* Answer::Find(v1::OutputKind kind) const {
  if (kind == v1::OUTPUT_KIND_OUTPUT) return &output;
  for (const auto& [extra, array] : extras) {
    if (extra == kind) return &array;
  }
  return nullptr;
}

absl::Status CheckFitsOneMessage(const Problem& problem) {
  if (problem.request_bytes() <= kMessageBytesMax - (1 << 20)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the tensors have ", problem.request_bytes(),
                                                   " bytes, more than one message can hold; send them over a stream"));
}

absl::Time ClientState::Deadline(const CallOptions& call) const {
  absl::Time deadline = call.deadline.value_or(absl::InfiniteFuture());
  // What gRPC says where there is none.
  if (deadline >= absl::FromChrono(std::chrono::system_clock::time_point::max())) deadline = absl::InfiniteFuture();
  const bool neither = deadline == absl::InfiniteFuture() && !call.timeout.has_value();
  const absl::Duration timeout = neither ? options.timeout : call.timeout.value_or(absl::InfiniteDuration());
  return std::min(deadline, clock.Now() + timeout);
}

Client::Client(std::unique_ptr<ClientState> state) : state_(std::move(state)) {}

Client::~Client() {
  if (!state_->async_calls.CancelAndWait()) return;
  // The thread that runs a callback cannot destroy the channel it came from.
  std::thread([state = std::move(state_)] { state->async_calls.WaitForAll(); }).detach();
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& target, const ClientOptions& options) {
  return Connect(target, options, Clock::System());
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& target, const ClientOptions& options,
                                                        Clock& clock) {
  const absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> channels = OpenChannels(target, options);
  if (!channels.ok()) return channels.status();
  return std::unique_ptr<Client>(new Client(std::make_unique<ClientState>(*channels, options, clock)));
}

absl::StatusOr<Answer> Client::Attend(const Problem& problem, const CallOptions& options) {
  if (const absl::Status fits = CheckFitsOneMessage(problem); !fits.ok()) return fits;
  absl::StatusOr<grpc::ByteBuffer> reply = state_->Unary<grpc::ByteBuffer>(
      options, [&](const Pool::Place& connection, grpc::ClientContext* context, grpc::ByteBuffer* bytes) {
        return grpc::internal::BlockingUnaryCall(connection->channel.get(), connection->attend, context,
                                                 EncodeAttend(problem.shared_request()), bytes);
      });
  if (!reply.ok()) return reply.status();
  return DecodeAnswer(problem, *reply);
}

PendingCall Client::AttendAsync(const Problem& problem, const CallOptions& options, AttendCallback callback) {
  PendingCall pending(std::make_shared<AsyncCall>(*state_, problem, options, std::move(callback)));
  pending.call_->Start();
  return pending;
}

void PendingCall::Cancel() const { call_->Cancel(); }

std::unique_ptr<Stream> Client::OpenStream(const CallOptions& options) {
  return std::unique_ptr<Stream>(new Stream(std::make_unique<Stream::Impl>(
      state_->pool.Take(), state_->Deadline(options), state_->options.piece_bytes, /*last=*/false)));
}

absl::StatusOr<Answer> Client::AttendStream(const Problem& problem, const StreamCall& call,
                                            const CallOptions& options) {
  absl::StatusOr<Answer> answer;
  bool handed_over = false;
  StreamCall watched = call;
  if (call.on_block) {
    watched.on_block = [&](const v1::Block& block) {
      handed_over = true;
      return call.on_block(block);
    };
  }
  const auto attempt = [&](absl::Time deadline) {
    answer = Stream::Impl(state_->pool.Take(), deadline, state_->options.piece_bytes, /*last=*/true)
                 .Attend(problem, watched);
    return answer.status();
  };
  state_->Retry(options, attempt, [&] { return handed_over; }).IgnoreError();
  return answer;
}

absl::StatusOr<v1::PlanResponse> Client::Plan(const v1::PlanRequest& request, const CallOptions& options) {
  v1::PlanRequest bare;
  *bare.mutable_problem() = Split(request.problem()).header;
  bare.set_layers(request.layers());
  return state_->Unary<v1::PlanResponse>(
      options, [&](const Pool::Place& connection, grpc::ClientContext* context, v1::PlanResponse* reply) {
        return connection->attention->Plan(context, bare, reply);
      });
}

absl::StatusOr<v1::InfoResponse> Client::Info(const CallOptions& options) {
  return state_->Unary<v1::InfoResponse>(
      options, [&](const Pool::Place& connection, grpc::ClientContext* context, v1::InfoResponse* reply) {
        return connection->attention->Info(context, {}, reply);
      });
}

absl::StatusOr<bool> Client::Health(const std::string& service, const CallOptions& options) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse reply;
  const auto call = [&](const Pool::Place& connection, grpc::ClientContext* context,
                        grpc::health::v1::HealthCheckResponse* response) {
    return connection->health->Check(context, request, response);
  };
  const absl::Status status = state_->Once(state_->Deadline(options), call, &reply);
  if (!status.ok()) return status;
  return reply.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

}  // namespace attnd::client
