// The reader of requests under arbitrary bytes. Cut into slices, they are taken or refused as stock protobuf does, with
// the same contents; then decode -> Problem::Create -> EstimateCost, by each of the three rules for tensor data; a
// problem that turns out tiny is computed too. Nothing may crash, and no refusal may be INTERNAL.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "attnd/v1/attention.pb.h"
#include "tests/fuzz/decode_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using attnd::server::DataRule;
  static const google::protobuf::LogSilencer silence;  // protobuf writes of each string that is not UTF-8
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  attnd::CompareWithStock<attnd::v1::AttendStreamRequest>(bytes);
  if (!attnd::CompareWithStock<attnd::v1::AttendRequest>(bytes)) return 0;
  for (const DataRule rule : {DataRule::kWhole, DataRule::kWholeOrLater, DataRule::kNone}) {
    attnd::v1::AttendRequest request;
    absl::StatusOr<attnd::RawMessage> raw = attnd::Read(bytes, request);
    attnd::Decode(request, *raw, rule);
  }
  return 0;
}
