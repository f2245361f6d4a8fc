#include "server/admin.h"

#include <civetweb.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/clock.h"
#include "server/log.h"
#include "server/statusz.h"

namespace attnd::server {
namespace {

// Threads, and connections that wait for one; what comes beyond waits in the system's queue, without a descriptor here.
constexpr char kThreads[] = "32", kWaiting[] = "16", kBacklog[] = "64";
// A request's line and headers, how long each of its parts may take, and how long an answer may.
constexpr char kRequestBytesMax[] = "8192", kRequestMs[] = "2000";
constexpr absl::Duration kSendMax = absl::Seconds(5);
constexpr std::size_t kSendPart = 16 << 10;

constexpr absl::string_view kPaths[] = {"/metrics", "/healthz", "/readyz", "/statusz", "/loglevel"};

constexpr char kText[] = "text/plain; charset=utf-8";

int LogMessage(const mg_connection*, const char* message) {
  Log(LogLevel::kDebug, "admin", {{"text", message}});
  return 1;
}

// Connects to host:port and leaves.
void Knock(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  const std::string host(absl::StripSuffix(absl::StripPrefix(address.substr(0, colon), "["), "]"));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) != 0) return;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    // Whether it succeeds does not matter, only that somebody came.
    [[maybe_unused]] const int connected = connect(fd, found->ai_addr, found->ai_addrlen);
    close(fd);
  }
  freeaddrinfo(found);
}

absl::string_view Reason(int code) {
  switch (code) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Payload Too Large";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
  }
}

}  // namespace

bool IsLoopback(absl::string_view address) {
  return absl::StartsWith(address, "127.") || address == "::1" || absl::StartsWith(address, "::ffff:127.");
}

struct Admin::Answer {
  int code = 200;
  std::string body;
  const char* type = kText;
  const char* allow = "";  // with 405
};

namespace {

void Send(mg_connection* connection, bool with_body, int code, const char* type, const char* allow,
          const std::string& body) {
  const std::string message = absl::StrCat(
      "HTTP/1.1 ", code, " ", Reason(code), "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
      "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
      "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n",
      *allow == '\0' ? "" : absl::StrCat("Allow: ", allow, "\r\n"), "\r\n", with_body ? body : "");
  // In parts, so that a peer that reads a little now and then has an end too.
  const absl::Time end = Now() + kSendMax;
  for (std::size_t sent = 0; sent < message.size() && Now() < end; sent += kSendPart) {
    const std::size_t part = std::min(kSendPart, message.size() - sent);
    if (mg_write(connection, message.data() + sent, part) != static_cast<int>(part)) return;
  }
}

}  // namespace

Admin::Answer Admin::ChangeLogLevel(mg_connection* connection) {
  const mg_request_info& request = *mg_get_request_info(connection);
  // A web page that is open on this machine must not be able to.
  if (!IsLoopback(request.remote_addr) || mg_get_header(connection, "Origin") != nullptr) {
    return {403, "only from this machine, and not by a web page\n"};
  }
  char body[16];
  if (request.content_length > static_cast<long long>(sizeof(body))) return {413, "expected one word\n"};
  std::string level;
  for (int count = 0; level.size() <= sizeof(body);) {
    count = mg_read(connection, body, sizeof(body));
    if (count <= 0) break;
    level.append(body, static_cast<std::size_t>(count));
  }
  absl::StripAsciiWhitespace(&level);
  const std::string before(GetLogLevel());
  if (!SetLogLevel(level)) return {400, absl::StrCat("expected one of ", absl::StrJoin(kLogLevels, ", "), "\n")};
  Log(LogLevel::kWarning, "log level changed", {{"from", before}, {"to", level}});
  return {200, absl::StrCat(level, "\n")};
}

Admin::Answer Admin::Page(mg_connection* connection) {
  const mg_request_info& request = *mg_get_request_info(connection);
  const absl::string_view path = request.local_uri == nullptr ? "" : request.local_uri;
  const absl::string_view method = request.request_method;
  if (path == "/loglevel" && method == "PUT") return ChangeLogLevel(connection);
  const bool is_read = method == "GET" || method == "HEAD";
  if (std::find(std::begin(kPaths), std::end(kPaths), path) == std::end(kPaths)) {
    return {404, absl::StrCat("expected one of ", absl::StrJoin(kPaths, ", "), "\n")};
  }
  if (!is_read) return {405, "another method\n", kText, path == "/loglevel" ? "GET, HEAD, PUT" : "GET, HEAD"};
  if (path == "/healthz") return {200, "ok\n"};
  if (path == "/metrics") return {200, engine_.metrics.Page(), "text/plain; version=0.0.4; charset=utf-8"};
  if (path == "/statusz") return {200, StatusPage(engine_, Now()), "text/html; charset=utf-8"};
  if (path == "/loglevel") return {200, absl::StrCat(GetLogLevel(), "\n")};
  const absl::Status ready = readiness_.Check();
  return {ready.ok() ? 200 : 503, absl::StrCat(ready.ok() ? "ok" : ready.message(), "\n")};
}

int Admin::OnRequest(mg_connection* connection) {
  const mg_request_info& request = *mg_get_request_info(connection);
  Admin& admin = *static_cast<Admin*>(request.user_data);
  Answer answer;
  try {
    answer = admin.Page(connection);
  } catch (const std::bad_alloc&) {
    answer = {503, "out of memory\n"};
  }
  const bool with_body = absl::string_view(request.request_method) != "HEAD";
  Send(connection, with_body, answer.code, answer.type, answer.allow, answer.body);
  admin.engine_.metrics.AdminRequest(request.local_uri == nullptr ? "" : request.local_uri, answer.code);
  return answer.code;
}

absl::StatusOr<std::unique_ptr<Admin>> Admin::Start(Engine& engine, const std::string& listen) {
  std::unique_ptr<Admin> admin(new Admin(engine));
  const char* options[] = {"listening_ports",
                           listen.c_str(),
                           "num_threads",
                           kThreads,
                           "connection_queue",
                           kWaiting,
                           "listen_backlog",
                           kBacklog,
                           "max_request_size",
                           kRequestBytesMax,
                           "request_timeout_ms",
                           kRequestMs,
                           "enable_keep_alive",
                           "no",
                           "enable_directory_listing",
                           "no",
                           "access_control_allow_origin",
                           "",
                           nullptr};
  mg_callbacks callbacks{};
  callbacks.begin_request = &OnRequest;
  callbacks.log_message = &LogMessage;
  mg_init_data init{&callbacks, admin.get(), options};
  char words[256] = "";
  mg_error_data error{};
  error.text = words;
  error.text_buffer_size = sizeof(words);
  admin->context_ = mg_start2(&init, &error);
  if (admin->context_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("--admin_listen: ", listen, ": ", words));
  }
  mg_server_port port{};
  mg_get_server_ports(admin->context_, 1, &port);
  admin->port_ = port.port;
  admin->address_ = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port.port);
  return admin;
}

Admin::~Admin() {
  if (context_ == nullptr) return;
  // Its accept loop looks up every 2 s, or when somebody comes.
  std::atomic<bool> stopped{false};
  std::thread stopper([this, &stopped] {
    mg_stop(context_);
    stopped = true;
  });
  while (!stopped) {
    Knock(address_);
    absl::SleepFor(absl::Milliseconds(5));
  }
  stopper.join();
}

}  // namespace attnd::server
