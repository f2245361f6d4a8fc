#include "server/server.h"

#include <grpcpp/grpcpp.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/buffer_pool.h"
#include "core/clock.h"
#include "core/kernel_info.h"
#include "server/acceptor.h"
#include "server/access.h"
#include "server/admin.h"
#include "server/engine.h"
#include "server/gate.h"
#include "server/health.h"
#include "server/log.h"
#include "server/reloaded_files.h"
#include "server/self_probe.h"
#include "server/tls.h"

namespace attnd::server {
namespace {

// Every gRPC default that is worth changing is changed here.
void Configure(const ServerConfig& config, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(config.message_bytes_max));
  builder.SetMaxSendMessageSize(static_cast<int>(config.message_bytes_max));
  // A compressed message may unpack to a thousand times its size before any limit is looked at.
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  grpc::ResourceQuota quota("attnd");
  quota.Resize(static_cast<std::size_t>(GrpcMemoryBytes(config)));
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(config.streams_max));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, static_cast<int>(config.handshake_ms));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(config.metadata_bytes_max));
  // A peer that has sent nothing for three quarters of peer_silence_ms is pinged, and has the rest to answer. It may
  // itself ping as often as every 10 s.
  const int ping_timeout_ms = static_cast<int>(config.peer_silence_ms / 4);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(config.peer_silence_ms) - ping_timeout_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ping_timeout_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, static_cast<int>(config.connection_idle_ms));
  // Callers come back, perhaps to another server; calls and streams that are open end as they would.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, static_cast<int>(config.connection_age_ms));
}

// A drain: how long no call may have come before gRPC is shut down, and how long at most that is waited for. Balancers
// notice within 2 or 3 s.
constexpr absl::Duration kQuiet = absl::Milliseconds(300), kTellMax = absl::Seconds(5);

// "127.0.0.1:0" with the port that was chosen.
std::string BoundAddress(const std::string& address, int port) {
  if (absl::StartsWith(address, "unix:")) return address;
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

absl::Status WritePortFile(absl::string_view flag, const std::string& path, int port) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path, std::ios::trunc);
  file << port << "\n";
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("--", flag, ": cannot write ", path));
}

}  // namespace

struct Server::Parts {
  explicit Parts(const ServerConfig& config)
      : engine(config), gate(engine, access, health, !config.tls_certificate.empty()), acceptor(engine) {
    engine.metrics.AddGauge("attnd_tls_certificate_expiry_timestamp_seconds",
                            "When the served certificate, or one of its chain, expires, in seconds since 1970; 0 "
                            "without TLS.",
                            [this] { return static_cast<double>(absl::ToUnixSeconds(tls.Expires())); });
  }
  // Reads the auth file, the certificates and the weight sets, and again whenever they change.
  absl::Status LoadFiles();
  // Calls `address` as a client would, from now on.
  void StartSelfProbe(const std::string& address);

  Engine engine;
  Access access;
  Tls tls;
  std::optional<OwnCertificate> own_certificate;  // with mutual TLS
  std::string own_token;
  std::vector<std::shared_ptr<ReloadedFiles>> files;
  Health health;
  Gate gate;
  std::unique_ptr<grpc::Server> grpc_server;
  Acceptor acceptor;             // ends before what it hands connections to
  std::unique_ptr<Admin> admin;  // null: none
  std::unique_ptr<SelfProbe> self_probe;
};

absl::Status Server::Parts::LoadFiles() {
  const ServerConfig& config = engine.config;
  if (!config.auth_file.empty()) {
    files.push_back(std::make_shared<ReloadedFiles>(
        "auth file", std::vector<std::string>{config.auth_file},
        [this](const std::vector<std::string>& contents) {
          absl::StatusOr<AuthRules> rules = ParseAuth(contents[0]);
          if (!rules.ok()) return rules.status();
          access.Replace(*std::move(rules));
          return absl::OkStatus();
        },
        [this](bool ok) { engine.metrics.AuthReload(ok); }));
    if (absl::Status status = files.back()->Load(); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--auth_file: ", status.message()));
    }
  }
  if (!config.tls_certificate.empty()) {
    std::vector<std::string> paths = {config.tls_key, config.tls_certificate};
    if (!config.tls_client_ca.empty()) {
      paths.push_back(config.tls_client_ca);
      absl::StatusOr<OwnCertificate> own = MakeOwnCertificate();
      if (!own.ok()) return own.status();
      own_certificate = *std::move(own);
    }
    files.push_back(std::make_shared<ReloadedFiles>(
        "certificates", std::move(paths),
        [this](const std::vector<std::string>& contents) {
          if (contents.size() < 3) return tls.Set({contents[0], contents[1]}, "");
          if (absl::Status status = CheckAuthorities(contents[2]); !status.ok()) return status;
          return tls.Set({contents[0], contents[1]}, absl::StrCat(contents[2], "\n", own_certificate->authority));
        },
        [this](bool ok) { engine.metrics.TlsReload(ok); }));
    if (absl::Status status = files.back()->Load(); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tls_certificate, --tls_key, --tls_client_ca: ", status.message()));
    }
  }
  for (const std::shared_ptr<ReloadedFiles>& watched : files) engine.watch.Add(watched);
  if (absl::Status status = engine.weight_files->Start(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--weights_dir: ", status.message()));
  }
  engine.watch.Add(engine.weight_files);
  return absl::OkStatus();
}

void Server::Parts::StartSelfProbe(const std::string& address) {
  ProbeTarget target{ReachableAddress(address), grpc::InsecureChannelCredentials(), own_token};
  if (!engine.config.tls_certificate.empty() && !absl::StartsWith(address, "unix:")) {
    target.credentials = OwnChannelCredentials(own_certificate.has_value() ? own_certificate->pair : CertificatePair());
  }
  self_probe = std::make_unique<SelfProbe>(
      std::move(target), absl::Milliseconds(engine.config.self_probe_ms), [this] { return acceptor.turned_away(); },
      [] { _exit(1); });
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerConfig& asked) {
  const ServerConfig config = Resolve(asked);
  auto parts = std::make_unique<Parts>(config);
  if (absl::Status status = parts->LoadFiles(); !status.ok()) return status;
  parts->own_token = NewSecret();
  parts->access.Add(
      {"attnd/self-probe", Policy{.methods = {"grpc.health.v1.Health/Check"}}, {DigestOf(parts->own_token)}, {}});
  grpc::EnableDefaultHealthCheckService(false);
  grpc::ServerBuilder builder;
  Configure(config, builder);
  std::vector<int> ports;
  for (const std::string& address : config.listen) {
    const absl::StatusOr<int> port = parts->acceptor.Listen(address);
    if (!port.ok()) {
      return absl::UnavailableError(absl::StrCat("--listen: ", address, ": ", port.status().message()));
    }
    ports.push_back(*port);
  }
  if (!config.admin_listen.empty()) {
    absl::StatusOr<std::unique_ptr<Admin>> admin = Admin::Start(parts->engine, config.admin_listen);
    if (!admin.ok()) return admin.status();
    parts->admin = *std::move(admin);
  }
  // The permissions of a Unix socket's file are its door: TLS is for what comes by a network.
  const auto add = [&builder](std::shared_ptr<grpc::ServerCredentials> credentials) {
    return builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, std::move(credentials));
  };
  auto from_unix = add(grpc::InsecureServerCredentials());
  auto from_tcp =
      add(config.tls_certificate.empty() ? grpc::InsecureServerCredentials() : parts->tls.ServerCredentials());
  builder.RegisterCallbackGenericService(&parts->gate);
  parts->grpc_server = builder.BuildAndStart();
  if (parts->grpc_server == nullptr) return absl::UnavailableError("gRPC did not start");
  parts->acceptor.Start(std::move(from_tcp), std::move(from_unix));
  int first_port = 0;
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    addresses.push_back(BoundAddress(config.listen[i], ports[i]));
    if (first_port == 0 && !absl::StartsWith(config.listen[i], "unix:")) first_port = ports[i];
  }
  Log(LogLevel::kInfo, "attnd starts",
      {{"version", ATTND_VERSION},
       {"instruction_set", GetKernelInfo().instruction_set_used},
       {"threads", config.threads},
       {"memory_bytes_max", config.memory_bytes_max},
       {"memory_bytes_problems", parts->engine.budget.bytes_allowed()},
       {"measured_gflops", std::llround(parts->engine.rates.tiled / 1e9)}});
  for (const std::string& address : addresses) Log(LogLevel::kInfo, absl::StrCat("listening on ", address));
  if (parts->admin != nullptr) Log(LogLevel::kInfo, absl::StrCat("admin port on ", parts->admin->address()));
  const int admin_port = parts->admin == nullptr ? 0 : parts->admin->port();
  absl::Status written = WritePortFile("admin_port_file", config.admin_port_file, admin_port);
  written.Update(WritePortFile("port_file", config.port_file, first_port));
  if (!written.ok()) return written;
  if (config.self_probe_ms > 0) parts->StartSelfProbe(addresses[0]);
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

void Server::Drain() {
  Engine& engine = parts_->engine;
  const absl::Duration limit = absl::Milliseconds(engine.config.drain_ms);
  // Callers reach this server, and are told, until the last accepted work is done.
  engine.lifecycle.BeginDrain();
  parts_->health.BeginDrain();
  Log(LogLevel::kInfo, "draining", {{"drain_ms", engine.config.drain_ms}});  // whoever reads it may count on it
  engine.watch.TickSoon();
  parts_->self_probe.reset();
  const absl::Time end = Now() + limit;
  const bool idle = engine.lifecycle.AwaitIdle(end);
  if (!idle) Log(LogLevel::kWarning, "drain_ms passed: cancelling what is left");
  // gRPC ends a call that arrives in the instant of its shutdown with CANCELLED, which may mean anything. So callers
  // who still come are told that this server drains, and may go elsewhere, until a balancer has noticed and sends no
  // more.
  engine.lifecycle.AwaitQuiet(kQuiet, std::min(end, Now() + kTellMax));
  // With nothing at work only answers on their way are waited for; else everything left is cancelled at once.
  const absl::Duration grace = idle ? absl::Milliseconds(500) : absl::ZeroDuration();
  parts_->acceptor.Stop();
  parts_->grpc_server->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  Log(LogLevel::kInfo, "stopped");
}

void SetUpProcess(const ServerConfig& config) {
  // Fresh pages cost more than every copy. Tensors keep theirs in the pool; messages come and go by malloc, which keeps
  // its own until IdleMemory asks for them. One arena: what others keep at their top no call gives back.
  BufferPool::Global().SetBytesMax(Resolve(config).pool_bytes_max);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest that glibc takes
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  mallopt(M_ARENA_MAX, 1);
  if (config.instruction_set == "avx2") LimitToAvx2();
  SetKernelCacheMax(config.kernel_cache_max);
}

}  // namespace attnd::server
