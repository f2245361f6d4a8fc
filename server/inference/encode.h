// Answers of the Open Inference Protocol, whose tensor bytes are not copied.
//
//   ModelInferResponse        = names and shapes(1 to 5) raw_output_contents(6)*
//   ModelStreamInferResponse  = infer_response(2) | error_message(1) infer_response(2)
// Thread rule: pure functions.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/problem.h"
#include "server/wire/encode.h"

namespace attnd::server {

// What an answer repeats of its request, as far as that was understood.
struct InferHead {
  std::string model_name, model_version, id;
};

// `replied` of `outputs`, in that order.
grpc::ByteBuffer EncodeInferResponse(const InferHead& head, const Problem& problem,
                                     const std::vector<OutputKind>& replied, const std::vector<NamedOutput>& outputs);

// A ModelInferResponse as an answer of a stream.
grpc::ByteBuffer EncodeStreamAnswer(const grpc::ByteBuffer& response);

// The words that a call would have ended with; its response names the request, and has the code as the parameter
// "status".
grpc::ByteBuffer EncodeStreamError(const InferHead& head, const absl::Status& status);

}  // namespace attnd::server
