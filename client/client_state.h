// What a Client holds and its calls share; apart from client.h so that no user of the library includes gRPC.
// Thread rule: any thread.
#pragma once

#include <grpcpp/client_context.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/async.h"
#include "client/clock.h"
#include "client/options.h"
#include "client/pool.h"
#include "client/problem.h"
#include "client/retry.h"
#include "client/wire.h"

namespace attnd::client {

// RESOURCE_EXHAUSTED when the tensors cannot be one message.
absl::Status CheckFitsOneMessage(const Problem& problem);

struct ClientState {
  ClientState(const std::vector<std::shared_ptr<grpc::Channel>>& channels, const ClientOptions& client_options,
              Clock& client_clock)
      : options(client_options), clock(client_clock), pool(channels), budget(options.retry) {}

  const ClientOptions options;
  Clock& clock;
  Pool pool;
  RetryBudget budget;
  AsyncCalls async_calls;

  absl::Time Deadline(const CallOptions& call) const;

  // Makes attempts, `attempt(deadline)` each, until one is answered, its status stands or `final()` is true.
  template <typename Attempt, typename Final>
  absl::Status Retry(const CallOptions& call, const Attempt& attempt, const Final& final) {
    const absl::Time deadline = Deadline(call);
    Retries retries(options.retry, budget, deadline);
    while (true) {
      const absl::Status status = attempt(deadline);
      if (status.ok()) {
        budget.OnSuccess();
        return status;
      }
      if (final()) return status;
      const std::optional<absl::Duration> wait = retries.After(status, clock.Now(), clock.Uniform());
      if (!wait.has_value()) return status;
      clock.Sleep(*wait);
    }
  }

  // One attempt of a unary call, which is `call(connection, context, reply)`.
  template <typename Reply, typename Call>
  absl::Status Once(absl::Time deadline, const Call& call, Reply* reply) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    const Pool::Place connection = pool.Take();
    return FromGrpc(call(connection, &context, reply));
  }

  // The same, asked again where that may help.
  template <typename Reply, typename Call>
  absl::StatusOr<Reply> Unary(const CallOptions& call_options, const Call& call) {
    Reply reply;
    const auto attempt = [&](absl::Time deadline) { return Once(deadline, call, &reply); };
    const absl::Status status = Retry(call_options, attempt, [] { return false; });
    if (!status.ok()) return status;
    return reply;
  }
};

}  // namespace attnd::client
