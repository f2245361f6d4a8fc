// The one place where our errors become gRPC's. A caller's mistake is never INTERNAL.
// Thread rule: pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include <new>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace attnd::server {

// What a caller is asked to wait when there is no room now.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(200);

// The only function that makes a grpc::Status from an absl::Status. A retry delay becomes google.rpc.RetryInfo in the
// status details.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The same code with an invitation to try again after `delay`.
absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);

// The same status, its words about `field`.
absl::Status AtField(absl::string_view field, const absl::Status& status);

// The answer when memory ran out in spite of admission.
absl::Status OutOfMemory();

// Runs `function`, which returns absl::Status or StatusOr; an allocation that fails in it becomes RESOURCE_EXHAUSTED.
template <typename Function>
auto CatchBadAlloc(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

}  // namespace attnd::server
