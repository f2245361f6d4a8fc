// The connections that are open, each known by its peer's name in gRPC and by a descriptor of ours for the same socket.
//
// A peer may open calls and reset them before they have said anything. Each costs gRPC some 20 KiB and 50 microseconds
// before any of our limits is asked, so whoever does that faster than an honest peer would is cut off.
// Thread rule: every function from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "absl/time/time.h"

struct sockaddr_storage;

namespace attnd::server {

// "ipv4:127.0.0.1:50051", as gRPC says it; "unix:" for all that is no IP address.
std::string PeerName(const sockaddr_storage& address);

class Connections {
 public:
  // Of one connection, so many calls a second may end without a message or find no place, and ten times as many at
  // once.
  explicit Connections(std::int64_t unread_per_second) : unread_per_second_(unread_per_second) {}

  // Takes `fd`, which it closes in Remove.
  void Add(int fd, std::string peer);
  // False when it has no such descriptor.
  bool Remove(int fd);
  std::size_t size() const;

  // A call of `peer` came.
  void CountCall(const std::string& peer);
  // Connections, open or not, on which one did.
  std::int64_t used() const { return used_; }

  // A call of `peer` ended before its first message had come, or found its connection full. True when that ended the
  // connection.
  bool CountUnread(const std::string& peer, absl::Time now);

 private:
  struct Connection {
    int fd = -1;
    double allowance = 0;  // of calls that may end unread now
    absl::Time refilled = absl::InfinitePast();
    bool used = false, ended = false;
  };
  const std::int64_t unread_per_second_;
  mutable std::mutex mutex_;
  std::map<int, std::string> peers_;  // by descriptor
  std::atomic<std::int64_t> used_{0};
  std::map<std::string, Connection> by_peer_;  // but for Unix sockets, whose peers all look alike
};

}  // namespace attnd::server
