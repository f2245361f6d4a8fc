// One problem of a stream: its header, the tensors that are still coming, and its run, which may begin while q, k, v or
// x still come.
// Thread rule: Open, Accept and Run on the stream's reading side, one at a time; stopper() from any thread; the rest
// under the stream's lock.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "core/attention.h"
#include "core/buffer.h"
#include "proto/wire/raw_message.h"
#include "server/block_sink.h"
#include "server/byte_cover.h"
#include "server/call.h"
#include "server/engine.h"
#include "server/stopper.h"
#include "server/wire/decode.h"

namespace attnd::server {

class StreamProblem {
 public:
  // Of a problem of the stream that `head` began: understands and admits it, copies the tensors that came with it,
  // whose bytes are in `raw`, and makes room for those that will come in pieces. `message` holds the header, for which
  // `held` was reserved.
  static absl::StatusOr<std::shared_ptr<StreamProblem>> Open(Engine& engine, const v1::AttendStreamRequest& message,
                                                             RawMessage raw, Reservation held, const CallHead& head,
                                                             BlockWriter& writer);

  // Puts a piece, whose bytes are in `raw`, in its place. An error is the problem's.
  absl::Status Accept(const v1::TensorPiece& piece, RawMessage& raw);
  bool complete() const { return missing_ == 0; }
  // Whether something of it could be computed now: all came, or it is large and all but q, k, v and x did.
  bool can_start() const { return complete() || (early_ && missing_others_ == 0); }
  // "k: 1024 of 2048 bytes came", of the first tensor that is not whole.
  std::string Missing() const;

  // Starts the computation, once can_start(); `done` runs on a worker, once, unless an error is returned.
  absl::Status Run(std::function<void(const AttentionReport&)> done);

  // Frees everything but the reservation for what is still being sent, which it hands out.
  std::shared_ptr<Reservation> Release();

  std::uint64_t id() const { return id_; }
  Stopper& stopper() { return stopper_; }
  v1::ProblemClosing& closing() { return closing_; }
  const std::string& shape() const { return shape_; }
  std::int64_t input_bytes() const { return input_bytes_; }
  std::int64_t memory_bytes() const { return closing_.statistics().memory_bytes(); }
  absl::Duration predicted() const { return predicted_; }
  std::int64_t output_bytes() const { return sink_.bytes_written(); }
  absl::Time opened_at() const { return opened_at_; }
  // When its last byte came; the far future before.
  absl::Time complete_at() const { return complete_at_; }
  // From the moment that it could start to the job's submission; a job's own queue time comes on top.
  absl::Duration waited() const { return waited_; }

  // Under the stream's lock.
  Pass pass;               // until its closing leaves
  bool running = false;    // a job exists, or is about to: it closes the problem
  bool accepting = false;  // the reading side is inside Accept: buffers must stay
  absl::Time last_piece;   // when the peer last sent something for it

 private:
  struct Pending {
    std::string path;
    InputTensor* tensor;
    AlignedBuffer<std::byte> buffer;
    ByteCover cover;
    std::atomic<std::int64_t>* arrived = nullptr;  // of arrived_; null for a tensor that must be whole first
  };

  StreamProblem(Engine& engine, std::uint64_t id, const CallHead& head, BlockWriter& writer);
  absl::Status Begin(const v1::AttendRequest& header, RawMessage raw, Reservation held, const Caller& caller);
  // Of a tensor by its path: q, k, v or x; null for others.
  std::atomic<std::int64_t>* ArrivedOf(absl::string_view path);

  Engine& engine_;
  const std::uint64_t id_;
  const absl::Time opened_at_;
  absl::Time complete_at_ = absl::InfiniteFuture(), startable_at_ = absl::InfiniteFuture();
  absl::Duration waited_, predicted_;
  ProblemInputs inputs_;
  std::vector<AlignedBuffer<std::byte>> tensors_;  // that came with the header
  Held held_;                                      // of the tensors that it named
  std::vector<Pending> pending_;                   // that come in pieces
  std::size_t missing_ = 0, missing_others_ = 0;   // of pending_, not whole yet; of these, not q, k, v or x
  bool early_ = false;                             // may start before all came
  Arrived arrived_;
  std::int64_t news_bytes_ = 0;  // that the running job was not told of
  std::int64_t input_bytes_ = 0, outputs_bytes_ = 0;
  Stopper stopper_;
  BlockSink sink_;
  Reservation reservation_;
  QueuePlace place_;
  std::shared_ptr<const Problem> problem_;
  v1::ProblemClosing closing_;
  std::string shape_;
  JobClass job_class_;
  RequestTable::Row row_;  // until the problem is closed and gone
};

}  // namespace attnd::server
