// The attnd client: connect once, then ask for attention from any number of threads.
//
//   auto client = Client::Connect("127.0.0.1:50051");
//   auto problem = Problem::FromQkv(q, k, v);
//   problem->options().set_causal(true);
//   auto answer = (*client)->Attend(*problem);   // answer->output has q's rank
//
// Errors keep the server's code and words. No call is made without a deadline. What RetryOptions allow is asked again.
// Thread rule: a Client may be used from any thread; a Stream from one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attnd/v1/attention.pb.h"
#include "client/array.h"
#include "client/options.h"
#include "client/problem.h"

namespace attnd::client {

class AsyncCall;
class Clock;
struct ClientState;

// What comes back, in the rank of the problem's arrays and in Problem::AnswerDType.
struct Answer {
  Array output;
  std::vector<std::pair<v1::OutputKind, Array>> extras;  // what was asked for beside it, in that order
  v1::Statistics statistics;

  // Null when it was not asked for or went to on_block.
  const Array* Find(v1::OutputKind kind) const;
};

// How long the server asked to wait before coming again; nothing where it did not.
std::optional<absl::Duration> RetryDelay(const absl::Status& status);

// One call on a stream.
struct StreamCall {
  // Outputs that are handed over block by block instead of being held: memory stays that of one block.
  std::vector<v1::OutputKind> by_block;
  // Takes those blocks as they travel, in the order they come, which is the order of no output. An error ends the call
  // with it.
  std::function<absl::Status(const v1::Block&)> on_block;
  // Tensor bytes sent and received so far, from 0 on in each attempt; called from both the sending and the receiving
  // thread, never at once.
  std::function<void(std::int64_t sent, std::int64_t received)> on_progress;
};

// An open AttendStream that carries one problem after another, sending while it reads.
class Stream {
 public:
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // A problem's own error leaves the stream usable; any other error is the stream's last (`alive` turns false).
  absl::StatusOr<Answer> Attend(const Problem& problem, const StreamCall& call = {});
  bool alive() const;
  // Ends the stream, and a problem on it, with CANCELLED. From any thread.
  void Cancel();

 private:
  friend class Client;
  struct Impl;
  explicit Stream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Takes the answer of AttendAsync, on a thread of gRPC's, of which there are few: it may begin calls and must not block
// or throw.
using AttendCallback = absl::AnyInvocable<void(absl::StatusOr<Answer>) &&>;

// A call that AttendAsync began; it goes on when this is gone. Copies stand for the same call.
// Thread rule: any thread.
class PendingCall {
 public:
  // The callback gets CANCELLED, unless another answer was on its way to it.
  void Cancel() const;

 private:
  friend class Client;
  explicit PendingCall(std::shared_ptr<AsyncCall> call) : call_(std::move(call)) {}
  std::shared_ptr<AsyncCall> call_;
};

class Client {
 public:
  // `target` is host:port, unix:path, dns:///host:port, or ipv4:a:port,b:port for several servers; which of several
  // addresses get calls, and over how many connections, is in the options. UNAVAILABLE when nothing answers within
  // connect_timeout, UNAUTHENTICATED when a TLS handshake fails; otherwise what LoadCredentials says of
  // options.credentials.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& target, const ClientOptions& options = {});
  // The same with another time than the machine's, for tests; the clock must live longer than the client.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& target, const ClientOptions& options,
                                                         Clock& clock);
  // Cancels what AttendAsync began and waits until every callback has returned; not for one that it is called from.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // One message each way: for problems and answers up to a few MiB.
  absl::StatusOr<Answer> Attend(const Problem& problem, const CallOptions& options = {});
  // The same, without waiting: the callback is called exactly once, maybe before this returns, and never by it. The
  // problem's tensors are shared, not copied.
  PendingCall AttendAsync(const Problem& problem, const CallOptions& options, AttendCallback callback);
  // The same as Attend over a stream: tensors of any size, in pieces. Once a block was handed over, nothing is asked
  // again.
  absl::StatusOr<Answer> AttendStream(const Problem& problem, const StreamCall& call = {},
                                      const CallOptions& options = {});
  // For many problems one after another. The timeout is the whole stream's. Nothing is asked again.
  std::unique_ptr<Stream> OpenStream(const CallOptions& options = {});

  // What the problem would cost. Only dtypes and shapes are sent, whether or not tensors hold bytes.
  absl::StatusOr<v1::PlanResponse> Plan(const v1::PlanRequest& request, const CallOptions& options = {});
  absl::StatusOr<v1::InfoResponse> Info(const CallOptions& options = {});
  // Whether `service` (empty: the whole server) is serving now; never asked again. NOT_FOUND for a service the server
  // does not have.
  absl::StatusOr<bool> Health(const std::string& service = "", const CallOptions& options = {});

 private:
  friend class Store;
  explicit Client(std::unique_ptr<ClientState> state);
  std::unique_ptr<ClientState> state_;
};

}  // namespace attnd::client
