// The server put together: services, listeners, and every gRPC setting in one function.
// Thread rule: Start and Drain from main.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/flags.h"

namespace attnd::server {

class Server {
 public:
  // `config` as ParseFlags gave it. Listens when it returns; the log says where. UNAVAILABLE names what could not be
  // bound.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerConfig& config);
  ~Server();

  // NOT_SERVING, no new work; accepted work finishes until drain_ms and is cancelled then. Returns when all is over.
  void Drain();

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// Settings of the allocator, the kernels and their cache that the whole process shares. Once, from main, before Start.
void SetUpProcess(const ServerConfig& config);

}  // namespace attnd::server
