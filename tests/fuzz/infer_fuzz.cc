// The reader of ModelInferRequests under arbitrary bytes, for each kind of model: taken or refused as stock protobuf
// does; then made the AttendRequest that says the same, which goes the way of decode_fuzz. Nothing may crash, and no
// refusal may be INTERNAL.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "inference/inference.pb.h"
#include "server/inference/decode.h"
#include "server/inference/fields.h"
#include "tests/fuzz/decode_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using attnd::server::ModelKind;
  static const google::protobuf::LogSilencer silence;  // protobuf writes of each string that is not UTF-8
  static attnd::server::Budget budget({1 << 30, 0, 0, 100});
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (!attnd::CompareWithStock<inference::ModelInferRequest>(bytes)) return 0;
  for (const ModelKind kind : {ModelKind::kAttention, ModelKind::kProjectedAttention, ModelKind::kWeightSet}) {
    const auto request = std::make_shared<inference::ModelInferRequest>();
    absl::StatusOr<attnd::RawMessage> raw = attnd::Read(bytes, *request);
    attnd::server::Reservation held(budget.AccountOf("a peer"));
    const absl::StatusOr<attnd::server::InferProblem> problem =
        attnd::server::DecodeInfer(request, {kind, "a model", "1"}, *raw, held);
    if (!problem.ok()) {
      attnd::Check(problem.status().code() == absl::StatusCode::kInvalidArgument);
      continue;
    }
    attnd::Decode(*problem->native, *raw, attnd::server::DataRule::kWhole);
  }
  return 0;
}
