#include "server/connections.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

constexpr char kUnix[] = "unix:";
constexpr double kBurstSeconds = 10;  // whose allowance may be used at once: honest callers cancel thousands together

}  // namespace

std::string PeerName(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& ip = reinterpret_cast<const sockaddr_in&>(address);
    return absl::StrCat("ipv4:", inet_ntop(AF_INET, &ip.sin_addr, text, sizeof(text)), ":", ntohs(ip.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto& ip = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &ip.sin6_addr, text, sizeof(text));
    return absl::StrCat("ipv6:%5B", text, "%5D:", ntohs(ip.sin6_port));
  }
  return kUnix;
}

void Connections::Add(int fd, std::string peer) {
  const std::lock_guard lock(mutex_);
  if (peer != kUnix) by_peer_[peer] = {.fd = fd};
  peers_[fd] = std::move(peer);
}

bool Connections::Remove(int fd) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(fd);
  if (found == peers_.end()) return false;
  // A peer's port may be in use again already.
  const auto known = by_peer_.find(found->second);
  if (known != by_peer_.end() && known->second.fd == fd) by_peer_.erase(known);
  peers_.erase(found);
  close(fd);
  return true;
}

std::size_t Connections::size() const {
  const std::lock_guard lock(mutex_);
  return peers_.size();
}

void Connections::CountCall(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end() || found->second.used) return;
  found->second.used = true;
  ++used_;
}

bool Connections::CountUnread(const std::string& peer, absl::Time now) {
  const std::lock_guard lock(mutex_);
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) return false;
  Connection& connection = found->second;
  const double rate = static_cast<double>(unread_per_second_);
  connection.allowance =
      std::min(kBurstSeconds * rate, connection.allowance + rate * absl::ToDoubleSeconds(now - connection.refilled));
  connection.refilled = now;
  connection.allowance -= 1;
  if (connection.allowance > -1 || connection.ended) return false;
  connection.ended = true;
  shutdown(connection.fd, SHUT_RDWR);  // of the socket, whose other descriptor is gRPC's
  return true;
}

}  // namespace attnd::server
