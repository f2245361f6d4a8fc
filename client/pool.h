// A client's connections, and which of them a call goes over.
// Thread rule: any thread.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/impl/rpc_method.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace attnd::client {

// One connection. The two calls that carry tensors are made of bytes, the others by their stubs.
struct Connection {
  explicit Connection(const std::shared_ptr<grpc::Channel>& connected);

  const std::shared_ptr<grpc::Channel> channel;
  const grpc::internal::RpcMethod attend, attend_stream;
  const std::unique_ptr<v1::AttentionService::Stub> attention;
  const std::unique_ptr<grpc::health::v1::Health::Stub> health;
  std::atomic<std::int64_t> calls{0};  // in flight
};

class Pool {
 public:
  // At least one channel.
  explicit Pool(const std::vector<std::shared_ptr<grpc::Channel>>& channels);

  // A call's place on a connection, from its beginning to its end.
  class Place {
   public:
    Place() = default;
    explicit Place(Connection& connection) : connection_(&connection) { ++connection.calls; }
    Place(Place&& other) noexcept : connection_(other.connection_) { other.connection_ = nullptr; }
    Place& operator=(Place&& other) noexcept {
      std::swap(connection_, other.connection_);
      return *this;
    }
    ~Place() {
      if (connection_ != nullptr) --connection_->calls;
    }
    Connection* operator->() const { return connection_; }

   private:
    Connection* connection_ = nullptr;
  };

  // On the connection with the fewest calls; where several have as few, on each in turn.
  Place Take();

 private:
  std::vector<std::unique_ptr<Connection>> connections_;
  std::atomic<std::size_t> turn_{0};
};

}  // namespace attnd::client
