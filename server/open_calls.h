// Calls that are open, of each connection and all together: HTTP/2's own bound holds only for peers that confirm it,
// and each call that is open takes about 12 KiB before its first byte of a message. Thread rule: every function from
// any thread. Places outlive neither the OpenCalls nor their one owner.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"

namespace attnd::server {

class OpenCalls {
 public:
  // A call's place, until it is destroyed.
  using Place = std::shared_ptr<const void>;

  struct Limit {
    std::int64_t allowed;
    std::string flag;  // where it comes from, for who is refused
  };

  // `what` are counted: "open calls". of_connection: of one that is no Unix socket, whose peers all look alike. in_all:
  // of all connections.
  OpenCalls(std::string what, Limit of_connection, Limit in_all)
      : what_(std::move(what)), of_connection_(std::move(of_connection)), in_all_(std::move(in_all)) {}

  // RESOURCE_EXHAUSTED with a retry delay. `always`: taken although all places are.
  absl::StatusOr<Place> Enter(const std::string& peer, bool always = false);

  // Whether the connection itself has all places that it may have, whatever others have.
  bool IsFull(const std::string& peer) const;

  std::int64_t open() const { return all_; }

 private:
  const std::string what_;
  const Limit of_connection_, in_all_;
  bool Fills(const std::string& peer, std::int64_t own) const;  // that many of its own

  mutable std::mutex mutex_;
  std::map<std::string, std::int64_t> open_;  // by peer
  std::atomic<std::int64_t> all_{0};          // written under mutex_
};

}  // namespace attnd::server
