// What the client's calls share: the one place that turns gRPC's status into ours, and requests without their bytes.
// Thread rule: pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "attnd/v1/attention.pb.h"

namespace attnd::client {

// The same code and words, and with them the server's google.rpc.RetryInfo.
absl::Status FromGrpc(const grpc::Status& status);

// A request without tensor bytes, and the bytes by the path that pieces name them with, in the order in which a server
// can use them. They point into the request.
struct SplitRequest {
  v1::AttendRequest header;
  std::vector<std::pair<std::string, const std::string*>> tensors;  // not the empty ones
};
// Every tensor's path in that order.
absl::Span<const absl::string_view> SendOrder();
SplitRequest Split(const v1::AttendRequest& request);

}  // namespace attnd::client
