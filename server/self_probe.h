// Calls this server's own health check through the port that it listens on, as a client would, on a new connection each
// time. A server that nobody reaches any more ends its process, so that whoever runs it can start another.
// Thread rule: Start and Stop from one thread.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/time.h"

namespace attnd::server {

struct ProbeTarget {
  std::string address;
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  std::string token;
};

class SelfProbe {
 public:
  static constexpr int kFailuresMax = 3;  // one after the other

  // `turned_away` counts connections that the server itself has closed or lets wait because there are too many: a probe
  // that fails while it grows says nothing. `give_up` runs after kFailuresMax.
  SelfProbe(ProbeTarget target, absl::Duration period, std::function<std::int64_t()> turned_away,
            std::function<void()> give_up);
  ~SelfProbe() { Stop(); }

  void Stop();

 private:
  void Run();
  bool Reached();

  const ProbeTarget target_;
  const absl::Duration period_;
  const std::function<std::int64_t()> turned_away_;
  const std::function<void()> give_up_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  grpc::ClientContext* calling_ = nullptr;  // while a call is open
  std::thread thread_;
};

// Where a client on this machine reaches what listens on `address`: a wildcard is this machine.
std::string ReachableAddress(const std::string& address);

}  // namespace attnd::server
