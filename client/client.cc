#include "client/client.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "attnd/v1/attention.grpc.pb.h"
#include "client/channel.h"
#include "client/decode.h"
#include "client/encode.h"
#include "client/stream_impl.h"
#include "client/wire.h"
#include "grpc/health/v1/health.grpc.pb.h"

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

struct Client::Impl {
  std::shared_ptr<grpc::Channel> channel;
  // The two calls that carry tensors are made of bytes, the others by their stubs.
  std::string attend_name, attend_stream_name;
  std::unique_ptr<grpc::internal::RpcMethod> attend, attend_stream;
  std::unique_ptr<v1::AttentionService::Stub> attention;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;
  ClientOptions options;

  absl::Time Deadline(const CallOptions& call) const { return absl::Now() + call.timeout.value_or(options.timeout); }
  // One unary call with its deadline.
  template <typename Response, typename Call>
  absl::StatusOr<Response> Unary(const CallOptions& call_options, const Call& call) const {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(Deadline(call_options)));
    Response response;
    const grpc::Status status = call(&context, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& target, const ClientOptions& options) {
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = OpenChannel(target, options);
  if (!channel.ok()) return channel.status();
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->channel = *std::move(channel);
  const std::string service = v1::AttentionService::service_full_name();
  impl->attend_name = absl::StrCat("/", service, "/Attend");
  impl->attend_stream_name = absl::StrCat("/", service, "/AttendStream");
  impl->attend = std::make_unique<grpc::internal::RpcMethod>(impl->attend_name.c_str(),
                                                             grpc::internal::RpcMethod::NORMAL_RPC, impl->channel);
  impl->attend_stream = std::make_unique<grpc::internal::RpcMethod>(
      impl->attend_stream_name.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING, impl->channel);
  impl->attention = v1::AttentionService::NewStub(impl->channel);
  impl->health = grpc::health::v1::Health::NewStub(impl->channel);
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

absl::StatusOr<Answer> Client::Attend(const Problem& problem, const CallOptions& options) {
  if (problem.request_bytes() > kMessageBytesMax - (1 << 20)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the tensors have ", problem.request_bytes(),
                     " bytes, more than one message can hold; send them over a stream"));
  }
  absl::StatusOr<grpc::ByteBuffer> reply =
      impl_->Unary<grpc::ByteBuffer>(options, [&](grpc::ClientContext* context, grpc::ByteBuffer* bytes) {
        return grpc::internal::BlockingUnaryCall(impl_->channel.get(), *impl_->attend, context,
                                                 EncodeAttend(problem.shared_request()), bytes);
      });
  if (!reply.ok()) return reply.status();
  return DecodeAnswer(problem, *reply);
}

std::unique_ptr<Stream> Client::OpenStream(const CallOptions& options) {
  return std::unique_ptr<Stream>(new Stream(std::make_unique<Stream::Impl>(
      *impl_->channel, *impl_->attend_stream, impl_->Deadline(options), impl_->options.piece_bytes, /*last=*/false)));
}

absl::StatusOr<Answer> Client::AttendStream(const Problem& problem, const StreamCall& call,
                                            const CallOptions& options) {
  return Stream::Impl(*impl_->channel, *impl_->attend_stream, impl_->Deadline(options), impl_->options.piece_bytes,
                      /*last=*/true)
      .Attend(problem, call);
}

absl::StatusOr<v1::PlanResponse> Client::Plan(const v1::PlanRequest& request, const CallOptions& options) {
  v1::PlanRequest bare;
  *bare.mutable_problem() = Split(request.problem()).header;
  bare.set_layers(request.layers());
  return impl_->Unary<v1::PlanResponse>(options, [&](grpc::ClientContext* context, v1::PlanResponse* reply) {
    return impl_->attention->Plan(context, bare, reply);
  });
}

absl::StatusOr<v1::InfoResponse> Client::Info(const CallOptions& options) {
  return impl_->Unary<v1::InfoResponse>(options, [&](grpc::ClientContext* context, v1::InfoResponse* reply) {
    return impl_->attention->Info(context, {}, reply);
  });
}

absl::StatusOr<bool> Client::Health(const std::string& service, const CallOptions& options) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  const absl::StatusOr<grpc::health::v1::HealthCheckResponse> response =
      impl_->Unary<grpc::health::v1::HealthCheckResponse>(
          options, [&](grpc::ClientContext* context, grpc::health::v1::HealthCheckResponse* reply) {
            return impl_->health->Check(context, request, reply);
          });
  if (!response.ok()) return response.status();
  return response->status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

}  // namespace attnd::client
