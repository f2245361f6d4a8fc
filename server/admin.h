// The admin port: HTTP for operators and their machines, beside the port that callers use.
//
//   GET /metrics    for Prometheus                       GET /healthz   200 while the process lives
//   GET /readyz     200, or 503 with the reason          GET /statusz   what runs, for a reader
//   GET, PUT /loglevel   PUT from this machine alone, with the level as body
//
// Any other path is answered 404, another method 405. One request a connection, and as many at a time as there are
// threads; whoever is slow to ask or to read is cut off. Thread rule: Start and the destructor from one thread; pages
// are made on threads of its own.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/engine.h"
#include "server/readiness.h"

struct mg_connection;
struct mg_context;

namespace attnd::server {

class Admin {
 public:
  // Listens on host:port (port 0: any free one). UNAVAILABLE names --admin_listen and says why not.
  static absl::StatusOr<std::unique_ptr<Admin>> Start(Engine& engine, const std::string& listen);
  // Ends the pages that are being made.
  ~Admin();
  Admin(const Admin&) = delete;
  Admin& operator=(const Admin&) = delete;

  int port() const { return port_; }
  // host:port with the port that was bound.
  const std::string& address() const { return address_; }

 private:
  struct Answer;
  explicit Admin(Engine& engine) : engine_(engine), readiness_(engine) {}
  static int OnRequest(mg_connection* connection);
  Answer Page(mg_connection* connection);
  Answer ChangeLogLevel(mg_connection* connection);

  Engine& engine_;
  Readiness readiness_;
  mg_context* context_ = nullptr;
  int port_ = 0;
  std::string address_;
};

// Whether a peer of this numeric address is on this machine.
bool IsLoopback(absl::string_view address);

}  // namespace attnd::server
