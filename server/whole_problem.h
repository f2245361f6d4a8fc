// A problem whose message is whole, by whichever door it came: read, understood, admitted, copied, computed, answered.
//
// A Door is one protocol's way of saying problems and answers; all between is the same for every protocol. Thread rule:
// Start once, on a thread of gRPC's; Stop from any thread; `done` runs on the sender's.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/attention.h"
#include "core/buffer.h"
#include "core/row_sink.h"
#include "proto/wire/raw_message.h"
#include "server/call.h"
#include "server/engine.h"
#include "server/stopper.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"

namespace attnd::server {

// What a message asks for.
struct Asked {
  RawMessage raw;                                     // the tensors' bytes
  std::unique_ptr<v1::AttendRequest> request;         // from, or as from, RawMessage::ParseSkeleton
  absl::Duration timeout = absl::InfiniteDuration();  // from when it was whole
};

// Of one message and its answer.
class Door {
 public:
  virtual ~Door() = default;

  // Empties `message`; `held` is reserved for it, and grows. What it says about itself is noted in `record`.
  virtual absl::StatusOr<Asked> Read(const Engine& engine, grpc::ByteBuffer& message, Reservation& held,
                                     RequestRecord& record) = 0;
  // Of a message that was read. Tensor bytes are not copied.
  virtual grpc::ByteBuffer Write(const Problem& problem, const std::vector<NamedOutput>& outputs,
                                 const v1::Statistics& statistics) const = 0;
  // A refusal that names fields of the native contract, with this protocol's names for them.
  virtual absl::Status InItsWords(const absl::Status& refusal) const { return refusal; }
};

class WholeProblem {
 public:
  using Done = std::function<void(const absl::StatusOr<grpc::ByteBuffer>& answer)>;

  // Of the call, or of the message of the stream, that `head` began. What becomes of it is noted in `record` and `row`.
  WholeProblem(Engine& engine, const CallHead& head, absl::Time deadline, std::unique_ptr<Door> door,
               RequestRecord& record, RequestTable::Row& row);

  // `message` came `whole_at`. `done` is called once unless an error is returned, and then never; what it captures
  // keeps this alive.
  absl::Status Start(grpc::ByteBuffer& message, absl::Time whole_at, Done done);
  void Stop(absl::Status reason) { stopper_.Stop(std::move(reason)); }
  // Ends a job that still waits when its deadline has passed.
  void Tick() {
    if (stopper_.token()->ShouldStop()) stopper_.Wake();
  }

  // The answer has left: nothing of this is needed any more.
  void Release();

 private:
  // What becomes of it is certain: counts it for its model, in this door's words. Before the answer leaves, so that
  // whoever has it finds it counted.
  absl::Status Decided(const absl::Status& status);
  absl::Status Admit(grpc::ByteBuffer& message, std::int64_t& weight);
  absl::StatusOr<grpc::ByteBuffer> Complete(const AttentionReport& report);
  void FreeProblem();

  Engine& engine_;
  const CallHead& head_;
  const std::unique_ptr<Door> door_;
  RequestRecord& record_;
  RequestTable::Row& row_;
  Stopper stopper_;
  Lifecycle::Work work_;
  Reservation reservation_;
  QueuePlace place_;
  absl::Time whole_at_, submitted_;
  absl::Duration predicted_;
  std::vector<AlignedBuffer<std::byte>> tensors_;  // the problem points into them, and into what is held
  Held held_;
  std::shared_ptr<const Problem> problem_;
  std::vector<NamedOutput> outputs_;
  std::unique_ptr<DenseSink> sink_;
  v1::Statistics statistics_;
};

// A call of one such message and one answer.
CallReactor* StartProblemCall(Engine& engine, CallContext* context, CallHead head, std::unique_ptr<Door> door);

}  // namespace attnd::server
