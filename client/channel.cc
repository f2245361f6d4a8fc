#include "client/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/credentials.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace attnd::client {

namespace {

using grpc::experimental::InterceptionHookPoints;

// Adds the token to whatever call is made on the channel, so that none can be made without it. Call credentials would
// do so over TLS alone.
class TokenOnEveryCall : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenOnEveryCall(const std::string& token) : value_(absl::StrCat("Bearer ", token)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
    return new Adder(value_);
  }

 private:
  class Adder : public grpc::experimental::Interceptor {
   public:
    explicit Adder(const std::string& value) : value_(value) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
        methods->GetSendInitialMetadata()->emplace("authorization", value_);
      }
      methods->Proceed();
    }

   private:
    const std::string& value_;  // the factory lives as long as the channel, which lives as long as its calls
  };
  const std::string value_;
};

// Why a channel does not connect. The state alone does not say; a call that fails at once does.
grpc::Status ReasonOf(const std::shared_ptr<grpc::Channel>& channel, absl::Time deadline) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  grpc::health::v1::HealthCheckResponse response;
  return grpc::health::v1::Health::NewStub(channel)->Check(&context, {}, &response);
}

absl::Status NotConnected(const std::string& target, bool tls, absl::string_view reason) {
  absl::ConsumePrefix(&reason, "failed to connect to all addresses; last error: ");
  for (const absl::string_view code : {"UNKNOWN: ", "UNAVAILABLE: "}) absl::ConsumePrefix(&reason, code);
  if (absl::StrContains(reason, "Ssl handshake failed") || absl::StrContains(reason, "is not in peer certificate")) {
    const absl::string_view guess =
        absl::StrContains(reason, "wrong version number") ? " (it seems to speak no TLS)" : "";
    return absl::UnauthenticatedError(absl::StrCat("the TLS handshake with ", target, " failed", guess, ": ", reason));
  }
  // Where there are no roots gRPC makes no connection, and says that of the addresses.
  if (tls && absl::StrContains(reason, "empty address list")) {
    return absl::UnavailableError(
        absl::StrCat("no server can be trusted at ", target, ": this system has no root certificates; give a CA"));
  }
  // A server that wants TLS, or another certificate, says so by closing; so does one that has too many connections.
  if (absl::StrContains(reason, "Socket closed")) {
    return absl::UnavailableError(
        absl::StrCat("the server at ", target, " closed the connection: ",
                     tls ? "it may want another client certificate than it got" : "it may speak nothing but TLS", " (",
                     reason, ")"));
  }
  return absl::UnavailableError(absl::StrCat("no server answers at ", target, ": ", reason));
}

// A channel that begins to connect.
std::shared_ptr<grpc::Channel> Open(const std::string& target, const ClientOptions& options,
                                    const Credentials& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Two channels are two connections, even to the same target.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A peer that is gone, or takes no more bytes, ends the calls that wait for it; gRPC alone would wait beyond their
  // deadlines. Servers refuse pings more often than every 10 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  arguments.SetUserAgentPrefix(absl::StrCat("attn/", ATTND_VERSION));
  if (options.balancing == Balancing::kRoundRobin) arguments.SetLoadBalancingPolicyName("round_robin");
  // What is on this machine is not reached through a proxy, which would see the token.
  if (IsLocalTarget(target)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!credentials.server_name.empty()) arguments.SetSslTargetNameOverride(credentials.server_name);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!credentials.token.empty()) interceptors.push_back(std::make_unique<TokenOnEveryCall>(credentials.token.text));
  std::shared_ptr<grpc::Channel> channel = grpc::experimental::CreateCustomChannelWithInterceptors(
      target,
      credentials.UsesTls()
          ? grpc::SslCredentials({credentials.ca.text, credentials.key.text, credentials.certificate.text})
          : grpc::InsecureChannelCredentials(),
      arguments, std::move(interceptors));
  channel->GetState(/*try_to_connect=*/true);
  return channel;
}

absl::Status WaitUntilConnected(const std::shared_ptr<grpc::Channel>& channel, const std::string& target, bool tls,
                                absl::Time deadline) {
  grpc_connectivity_state state = channel->GetState(true);
  while (state != GRPC_CHANNEL_READY) {
    // A refused connection is an answer: whoever starts a server and a client together waits by asking again.
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
      const grpc::Status reason = ReasonOf(channel, deadline);
      if (reason.error_code() == grpc::StatusCode::UNAVAILABLE || state == GRPC_CHANNEL_SHUTDOWN) {
        return NotConnected(target, tls, reason.error_message());
      }
    } else if (!channel->WaitForStateChange(state, absl::ToChronoTime(deadline))) {
      return absl::UnavailableError(absl::StrCat("no server answered at ", target, " in time"));
    }
    state = channel->GetState(true);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> OpenChannels(const std::string& target,
                                                                         const ClientOptions& options) {
  const absl::StatusOr<Credentials> credentials = LoadCredentials(options.credentials, target);
  if (!credentials.ok()) return credentials.status();
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < std::max(options.connections, 1); ++i) channels.push_back(Open(target, options, *credentials));
  const absl::Time deadline = absl::Now() + std::min(options.connect_timeout, options.timeout);
  for (const std::shared_ptr<grpc::Channel>& channel : channels) {
    const absl::Status connected = WaitUntilConnected(channel, target, credentials->UsesTls(), deadline);
    if (!connected.ok()) return connected;
  }
  return channels;
}

}  // namespace attnd::client
