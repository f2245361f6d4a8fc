#include "client/pool.h"

namespace attnd::client {

namespace {

constexpr char kAttend[] = "/attnd.v1.AttentionService/Attend";
constexpr char kAttendStream[] = "/attnd.v1.AttentionService/AttendStream";

}  // namespace

Connection::Connection(const std::shared_ptr<grpc::Channel>& connected)
    : channel(connected),
      attend(kAttend, grpc::internal::RpcMethod::NORMAL_RPC, channel),
      attend_stream(kAttendStream, grpc::internal::RpcMethod::BIDI_STREAMING, channel),
      attention(v1::AttentionService::NewStub(channel)),
      health(grpc::health::v1::Health::NewStub(channel)) {}

Pool::Pool(const std::vector<std::shared_ptr<grpc::Channel>>& channels) {
  for (const std::shared_ptr<grpc::Channel>& channel : channels) {
    connections_.push_back(std::make_unique<Connection>(channel));
  }
}

Pool::Place Pool::Take() {
  const std::size_t count = connections_.size();
  const std::size_t first = count == 1 ? 0 : turn_.fetch_add(1, std::memory_order_relaxed) % count;
  Connection* best = connections_[first].get();
  for (std::size_t i = 1; i < count; ++i) {
    Connection* other = connections_[(first + i) % count].get();
    if (other->calls.load(std::memory_order_relaxed) < best->calls.load(std::memory_order_relaxed)) best = other;
  }
  return Place(*best);
}

}  // namespace attnd::client
