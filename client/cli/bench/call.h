// One request on its way, and the two ways it can go: a call of Attend, or a problem on an AttendStream.
// Thread rule: events happen on the thread that reads their queue; Send may be called from any thread.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/bench/recorder.h"
#include "client/cli/bench/workload.h"

namespace attnd::client {

// What a completion queue gives back.
class Event {
 public:
  virtual ~Event() = default;
  virtual void Happened(bool ok) = 0;
};

// An event that is part of something larger.
class Hook : public Event {
 public:
  explicit Hook(std::function<void(bool)> what) : what_(std::move(what)) {}
  void Happened(bool ok) override { what_(ok); }

 private:
  const std::function<void(bool)> what_;
};

struct Request {
  const WorkItem* item = nullptr;
  std::optional<Problem> own;  // this call's, where every call converts
  std::int64_t due_ns = 0, sent_ns = 0;
  std::function<void(const Outcome&)> done;  // called once
};

// Sees every reply of Attend before it is read.
using SeeReply = std::function<void(const WorkItem&, const grpc::ByteBuffer&)>;

// Begins a call of Attend.
void StartUnary(Request request, grpc::GenericStub& stub, grpc::CompletionQueue& queue, absl::Duration timeout,
                const SeeReply& see);

// An AttendStream that carries problems, any number at once. After an error the next problem opens another.
class StreamLine {
 public:
  StreamLine(grpc::GenericStub& stub, grpc::CompletionQueue& queue) : stub_(stub), queue_(queue) {}

  // Deadline of streams that are opened from now on.
  void SetDeadline(absl::Time deadline);
  void Send(Request request);
  // Ends the stream and waits for that; the queue must still be read. No problem may be open.
  void Close();

 private:
  struct Carried {
    Request request;
    std::int64_t output_bytes = 0;
    std::string converted;  // what a caller with other arrays would hold
  };
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
    std::deque<grpc::ByteBuffer> writes;
    bool started = false, writing = false, ending = false, finishing = false, finished = false;
    int operations = 0;  // that have not come back
    grpc::ByteBuffer read;
    grpc::Status status;
    absl::Status broken;  // what the server did wrong
    std::map<std::uint64_t, Carried> open;
    std::unique_ptr<Hook> on_start, on_write, on_read, on_finish;
  };

  // These hold the lock.
  void Open();
  void WriteNext(Call& call);
  // When nothing else is under way on a call that is over, asks why.
  void FinishIfIdle(Call& call);
  // One message. Returns whom to tell when it was a problem's last.
  std::function<void(const Outcome&)> Take(Call& call, Outcome* outcome);

  // These happen.
  void Started(Call& call, bool ok);
  void Wrote(Call& call, bool ok);
  void Read(Call& call, bool ok);
  void Finished(Call& call);

  grpc::GenericStub& stub_;
  grpc::CompletionQueue& queue_;
  std::mutex mutex_;  // never held while a request's `done` runs
  std::condition_variable all_finished_;
  absl::Time deadline_;
  std::uint64_t next_id_ = 1;
  Call* call_ = nullptr;  // the one that takes problems
  std::vector<std::unique_ptr<Call>> calls_;
};

// CLOCK_MONOTONIC, nanoseconds.
std::int64_t NowNs();
// "/attnd.v1.AttentionService/Attend"
std::string MethodName(absl::string_view method);

}  // namespace attnd::client
