// One problem of a stream: its header, the tensors that are still coming, and then its run.
// Thread rule: Open, Accept and Run on the stream's reading side, one at a time; stopper() from any thread; the rest
// under the stream's lock.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "core/attention.h"
#include "core/buffer.h"
#include "server/block_sink.h"
#include "server/byte_cover.h"
#include "server/engine.h"
#include "server/receive.h"
#include "server/stopper.h"

namespace attnd::server {

class StreamProblem {
 public:
  // Of a problem of `client`: understands and admits it, copies the tensors that came with it and makes room for those
  // that will come in pieces. `message` holds the header.
  static absl::StatusOr<std::shared_ptr<StreamProblem>> Open(Engine& engine, const v1::AttendStreamRequest& message,
                                                             Received received, absl::Time call_deadline,
                                                             std::string client, BlockWriter& writer);

  // Puts a piece, whose bytes are in `raw`, in its place. An error is the problem's.
  absl::Status Accept(const v1::TensorPiece& piece, RawRequest& raw);
  bool complete() const { return missing_ == 0; }
  // "k: 1024 of 2048 bytes came", of the first tensor that is not whole.
  std::string Missing() const;

  // Starts the computation; `done` runs on a worker, once, unless an error is returned.
  absl::Status Run(std::function<void(const AttentionReport&)> done);

  // Frees everything but the reservation for what is still being sent, which it hands out.
  std::shared_ptr<Reservation> Release();

  std::uint64_t id() const { return id_; }
  Stopper& stopper() { return stopper_; }
  v1::ProblemClosing& closing() { return closing_; }
  const std::string& shape() const { return shape_; }
  absl::Time arrived() const { return arrived_; }
  std::int64_t input_bytes() const { return input_bytes_; }
  std::int64_t output_bytes() const { return sink_.bytes_written(); }
  // From the last byte's arrival to the job's submission; a job's own queue time comes on top.
  absl::Time complete_at() const { return complete_at_; }
  absl::Time submitted() const { return submitted_; }

  // Under the stream's lock.
  bool running = false;    // a job exists, or is about to: it closes the problem
  bool accepting = false;  // the reading side is inside Accept: buffers must stay
  absl::Time last_piece;   // when the peer last sent something for it

 private:
  struct Pending {
    std::string path;
    InputTensor* tensor;
    AlignedBuffer<std::byte> buffer;
    ByteCover cover;
  };

  StreamProblem(Engine& engine, std::uint64_t id, absl::Time call_deadline, std::string client, BlockWriter& writer);
  absl::Status Begin(const v1::AttendRequest& header, Received received);

  Engine& engine_;
  const std::uint64_t id_;
  const absl::Time arrived_;
  absl::Time complete_at_, submitted_;
  ProblemInputs inputs_;
  std::vector<AlignedBuffer<std::byte>> tensors_;  // that came with the header
  std::vector<Pending> pending_;                   // that come in pieces
  std::size_t missing_ = 0;                        // of pending_, not whole yet
  std::int64_t input_bytes_ = 0, outputs_bytes_ = 0;
  Stopper stopper_;
  BlockSink sink_;
  Reservation reservation_;
  std::shared_ptr<const Problem> problem_;
  v1::ProblemClosing closing_;
  std::string shape_;
  JobClass job_class_;
};

}  // namespace attnd::server
