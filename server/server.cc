#include "server/server.h"

#include <grpcpp/grpcpp.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/attention.h"
#include "core/buffer_pool.h"
#include "server/acceptor.h"
#include "server/admin.h"
#include "server/engine.h"
#include "server/gate.h"
#include "server/health.h"
#include "server/log.h"

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
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000);
  // A peer that has sent nothing for three quarters of peer_silence_ms is pinged, and has the rest to answer. It may
  // itself ping as often as every 10 s.
  const int ping_timeout_ms = static_cast<int>(config.peer_silence_ms / 4);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(config.peer_silence_ms) - ping_timeout_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ping_timeout_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 3600000);
}

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
  explicit Parts(const ServerConfig& config) : engine(config), gate(engine, access, health, /*tls=*/false), acceptor(engine) {}
  Engine engine;
  Access access;
  Health health;
  Gate gate;
  std::unique_ptr<grpc::Server> grpc_server;
  Acceptor acceptor;             // ends before what it hands connections to
  std::unique_ptr<Admin> admin;  // null: none
};

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerConfig& asked) {
  const ServerConfig config = Resolve(asked);
  auto parts = std::make_unique<Parts>(config);
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
  auto to_grpc = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(&parts->gate);
  parts->grpc_server = builder.BuildAndStart();
  if (parts->grpc_server == nullptr) return absl::UnavailableError("gRPC did not start");
  parts->acceptor.Start(std::move(to_grpc));
  int first_port = 0;
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    addresses.push_back(BoundAddress(config.listen[i], ports[i]));
    if (first_port == 0 && !absl::StartsWith(config.listen[i], "unix:")) first_port = ports[i];
  }
  Log(LogLevel::kInfo, "attnd starts",
      {{"version", std::string(ATTND_VERSION)},
       {"instruction_set", GetKernelInfo().instruction_set_used},
       {"threads", config.threads},
       {"memory_bytes_max", config.memory_bytes_max},
       {"memory_bytes_problems", parts->engine.budget.bytes_allowed()},
       {"measured_gflops", parts->engine.rates.tiled / 1e9}});
  for (const std::string& address : addresses) Log(LogLevel::kInfo, absl::StrCat("listening on ", address));
  if (parts->admin != nullptr) Log(LogLevel::kInfo, absl::StrCat("admin port on ", parts->admin->address()));
  const int admin_port = parts->admin == nullptr ? 0 : parts->admin->port();
  absl::Status written = WritePortFile("admin_port_file", config.admin_port_file, admin_port);
  written.Update(WritePortFile("port_file", config.port_file, first_port));
  if (!written.ok()) return written;
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

void Server::Drain() {
  Engine& engine = parts_->engine;
  const absl::Duration limit = absl::Milliseconds(engine.config.drain_ms);
  Log(LogLevel::kInfo, "draining", {{"drain_ms", engine.config.drain_ms}});
  // Callers reach this server, and are told, until the last accepted work is done.
  engine.lifecycle.BeginDrain();
  parts_->health.BeginDrain();
  engine.watch.TickSoon();
  const bool idle = engine.lifecycle.AwaitIdle(absl::Now() + limit);
  if (!idle) Log(LogLevel::kWarning, "drain_ms passed: cancelling what is left");
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
