#include "server/acceptor.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/log.h"

namespace attnd::server {
namespace {

constexpr int kBacklog = 1024;
constexpr int kPauseMs = 100;  // after descriptors ran out

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

bool Watch(int epoll, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Acceptor::~Acceptor() {
  Stop();
  for (const int fd : {epoll_, wake_}) {
    if (fd >= 0) close(fd);
  }
}

absl::Status Acceptor::Bind(int domain, const void* address, std::size_t length) {
  const int fd = socket(domain, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Failed("socket");
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (domain == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  if (bind(fd, static_cast<const sockaddr*>(address), static_cast<socklen_t>(length)) != 0 ||
      listen(fd, kBacklog) != 0) {
    const absl::Status status = Failed("cannot listen");
    close(fd);
    return status;
  }
  listeners_.push_back(fd);
  return absl::OkStatus();
}

absl::StatusOr<int> Acceptor::ListenTcp(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) host = host.substr(1, host.size() - 2);
  std::string port = address.substr(colon + 1);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(gai_strerror(error));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  int bound = 0;
  for (addrinfo* each = found; each != nullptr; each = each->ai_next) {
    // Further addresses of one host get the port that was chosen for the first.
    auto* const port_field = each->ai_family == AF_INET6 ? &reinterpret_cast<sockaddr_in6*>(each->ai_addr)->sin6_port
                                                         : &reinterpret_cast<sockaddr_in*>(each->ai_addr)->sin_port;
    if (bound != 0) *port_field = htons(static_cast<std::uint16_t>(bound));
    if (absl::Status status = Bind(each->ai_family, each->ai_addr, each->ai_addrlen); !status.ok()) return status;
    sockaddr_storage name{};
    socklen_t length = sizeof(name);
    getsockname(listeners_.back(), reinterpret_cast<sockaddr*>(&name), &length);
    bound = ntohs(each->ai_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                              : reinterpret_cast<sockaddr_in&>(name).sin_port);
  }
  return bound;
}

absl::Status Acceptor::ListenUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::UnavailableError(absl::StrCat("a socket's path has 1 to ", sizeof(address.sun_path) - 1, " bytes"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  // A file that nobody listens on was left behind by a server that was killed.
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return Failed("socket");
  if (connect(probe, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 && errno == ECONNREFUSED) {
    unlink(path.c_str());
  }
  close(probe);
  if (absl::Status status = Bind(AF_UNIX, &address, sizeof(address)); !status.ok()) return status;
  socket_files_.push_back(path);
  unix_listeners_.insert(listeners_.back());
  return absl::OkStatus();
}

absl::StatusOr<int> Acceptor::Listen(const std::string& address) {
  if (!absl::StartsWith(address, "unix:")) return ListenTcp(address);
  if (absl::Status status = ListenUnix(address.substr(5)); !status.ok()) return status;
  return 0;
}

void Acceptor::Start(ToGrpc from_tcp, ToGrpc from_unix) {
  from_tcp_ = std::move(from_tcp);
  from_unix_ = std::move(from_unix);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  Watch(epoll_, wake_, EPOLLIN);
  WatchListeners(true);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    stopping_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
    thread_.join();
  }
  for (const int listener : listeners_) close(listener);
  listeners_.clear();
  for (const std::string& path : socket_files_) unlink(path.c_str());
  socket_files_.clear();
}

void Acceptor::WatchListeners(bool watch) {
  paused_ = !watch;
  for (const int listener : listeners_) {
    if (watch) {
      Watch(epoll_, listener, EPOLLIN);
    } else {
      epoll_ctl(epoll_, EPOLL_CTL_DEL, listener, nullptr);
    }
  }
}

void Acceptor::Run() {
  while (!stopping_) {
    epoll_event events[64];
    const int count = epoll_wait(epoll_, events, 64, paused_ ? kPauseMs : -1);
    if (paused_ && count == 0) WatchListeners(true);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      // A hang-up: gRPC or the peer has ended it.
      if (!engine_.connections.Remove(fd) && fd != wake_) AcceptAll(fd);
    }
  }
}

void Acceptor::Pause() {
  ++turned_away_;
  Log(LogLevel::kWarning, "accepting pauses", {{"reason", std::strerror(errno)}});
  engine_.metrics.ConnectionRefused(ConnectionRefusal::kDescriptors);
  WatchListeners(false);
}

void Acceptor::AcceptAll(int listener) {
  while (!paused_) {
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&peer), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        Pause();
      }
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    if (static_cast<std::int64_t>(engine_.connections.size()) >= engine_.config.connections_max) {
      close(fd);
      ++turned_away_;
      engine_.metrics.ConnectionRefused(ConnectionRefusal::kLimit);
      continue;
    }
    const int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    // Once: as long as gRPC has the socket open, epoll would go on to report it under the number of a duplicate that is
    // closed, and that the next connection may have by then.
    if (duplicate < 0 || !Watch(epoll_, duplicate, EPOLLONESHOT)) {
      close(fd);
      if (duplicate >= 0) close(duplicate);
      return Pause();
    }
    engine_.connections.Add(duplicate, PeerName(peer));
    engine_.metrics.ConnectionAccepted();
    const int on = 1;
    // Both fail on a Unix socket, where they are not needed. A ping cannot pass bytes that the peer does not take: the
    // system ends a connection when they wait that long.
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &peer_silence_ms_, sizeof(peer_silence_ms_));
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.fd = fd;
    (unix_listeners_.contains(listener) ? from_unix_ : from_tcp_)->HandleNewConnection(&parameters);
  }
}

}  // namespace attnd::server
