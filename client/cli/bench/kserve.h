// A problem as a call of the Open Inference Protocol (version 2, KServe's), so that other servers are measured by the
// same hand: inputs q, k and v, lists of the options as further inputs, single options as parameters, all under the
// names of the native contract. Thread rule: pure functions.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/problem.h"

namespace attnd::client {

inline constexpr char kModelInfer[] = "/inference.GRPCInferenceService/ModelInfer";

// A ModelInferRequest that wants the tensor "output" alone. INVALID_ARGUMENT names an option that has no place in one.
absl::StatusOr<grpc::ByteBuffer> EncodeModelInfer(const Problem& problem, const std::string& model);

// Bytes of the tensor "output" in a ModelInferResponse, raw or float32 by value. INTERNAL where there is none.
absl::StatusOr<std::int64_t> ModelOutputBytes(const grpc::ByteBuffer& reply);

}  // namespace attnd::client
