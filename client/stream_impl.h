// What a Stream holds; apart from client.h so that no user of the library includes gRPC.
// Thread rule: as Stream.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/sync_stream.h>

#include <memory>

#include "attnd/v1/attention.pb.h"
#include "client/client.h"
#include "client/pool.h"
#include "client/wire.h"

namespace attnd::client {

struct Stream::Impl {
  Impl(Pool::Place connection, absl::Time deadline, std::int64_t piece_bytes, bool last);
  ~Impl();

  absl::StatusOr<Answer> Attend(const Problem& problem, const StreamCall& call);

 private:
  friend class Stream;
  struct Call;
  // Header, then pieces, until done, told to stop or the stream breaks.
  void Send(Call& call);
  // Blocks until the closing message.
  absl::StatusOr<Answer> Receive(Call& call);
  // The stream is over: asks it why.
  absl::Status Finish();

  const Pool::Place connection_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream_;
  const std::int64_t piece_bytes_;
  const bool last_;  // only one problem will be asked
  std::uint64_t next_id_ = 1;
  bool alive_ = true;
};

}  // namespace attnd::client
