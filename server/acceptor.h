// The accept loop: binds the addresses, counts connections, and hands each to gRPC.
//
// gRPC's own listener ends for good when descriptors run out, and cannot bound how many connections it takes. Here a
// connection beyond connections_max is closed at once, and a lack of descriptors only makes accepting pause. To learn
// when a connection ends, of which gRPC tells nobody, a duplicate of its descriptor is watched for the hang-up: a
// connection costs two descriptors. Thread rule: Listen before the gRPC server is built, Start after it runs, Stop
// before it is shut down; all from one thread.
#pragma once

#include <grpcpp/server_builder.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine.h"

namespace attnd::server {

class Acceptor {
 public:
  // A connection whose peer's system takes none of the bytes that wait for it ends after the engine's peer_silence_ms.
  // The engine counts connections.
  explicit Acceptor(Engine& engine)
      : engine_(engine), peer_silence_ms_(static_cast<int>(engine.config.peer_silence_ms)) {}
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Binds and listens on host:port (a host's every address) or unix:path. The port, chosen when it was 0; 0 for unix.
  // UNAVAILABLE says why not.
  absl::StatusOr<int> Listen(const std::string& address);

  using ToGrpc = std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>;
  // Where connections go that come by TCP, and by a Unix socket.
  void Start(ToGrpc from_tcp, ToGrpc from_unix);
  // Connections that were closed at once, and pauses: accepting goes on, and there is too much of it.
  std::int64_t turned_away() const { return turned_away_; }
  // Takes no more connections. Those that are open stay.
  void Stop();

 private:
  absl::StatusOr<int> ListenTcp(const std::string& address);
  absl::Status ListenUnix(const std::string& path);
  absl::Status Bind(int domain, const void* address, std::size_t length);
  void Run();
  void AcceptAll(int listener);
  void WatchListeners(bool watch);

  void Pause();

  Engine& engine_;
  const int peer_silence_ms_;
  std::vector<int> listeners_;
  std::vector<std::string> socket_files_;
  std::unordered_set<int> unix_listeners_;  // among listeners_
  ToGrpc from_tcp_, from_unix_;
  std::atomic<std::int64_t> turned_away_{0};
  int epoll_ = -1, wake_ = -1;
  std::atomic<bool> stopping_{false};
  bool paused_ = false;  // out of descriptors; the loop's thread only
  std::thread thread_;
};

}  // namespace attnd::server
