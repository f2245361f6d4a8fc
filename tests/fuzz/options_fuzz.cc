// Options from the wire under arbitrary bytes, on a problem that is otherwise sound: the first byte chooses its shape
// and type, the rest is a v1.Options. It is refused as INVALID_ARGUMENT in words that name a field, or taken; then the
// tiled answer keeps the contract's bounds of the float64 reference, in every output.
#include <google/protobuf/stubs/logging.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "attnd/v1/attention.pb.h"
#include "core/attention.h"
#include "core/cost.h"
#include "proto/wire/raw_message.h"
#include "server/wire/decode.h"
#include "tests/core/compare.h"
#include "tests/proto/messages.h"

namespace {

using attnd::server::DataRule;

constexpr attnd::ProblemLimits kLimits = {1 << 12, 1 << 16};

void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "options_fuzz: %s\n", what.c_str());
  std::abort();
}

// B, H, N, d of q, and of k and v; with pages, k and v are [P, H, R, d]. Heads and rows agree in either layout.
struct Shapes {
  std::vector<std::int64_t> q, k;
};

Shapes ShapesOf(std::uint8_t choice) {
  switch (choice % 4) {
    case 0: return {{1, 1, 3, 2}, {1, 1, 3, 2}};
    case 1: return {{2, 4, 4, 3}, {2, 2, 2, 3}};
    case 2: return {{1, 2, 2, 4}, {3, 2, 2, 4}};  // only sound as pages
    default: return {{2, 2, 2, 4}, {2, 2, 2, 4}};
  }
}

attnd::v1::Tensor Waves(const std::vector<std::int64_t>& shape, double phase) {
  attnd::v1::Tensor tensor;
  tensor.set_dtype(attnd::v1::DATA_TYPE_FLOAT32);
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    tensor.add_shape(size);
    elements *= size;
  }
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto value = static_cast<float>(std::sin(phase + 0.7 * static_cast<double>(i)));
    tensor.mutable_data()->append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return tensor;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const google::protobuf::LogSilencer silence;
  static auto* const one = new attnd::Executor(1);
  attnd::v1::AttendRequest sent, request;
  if (size == 0 || !sent.mutable_options()->ParseFromArray(data + 1, static_cast<int>(size - 1))) return 0;
  const Shapes shapes = ShapesOf(data[0]);
  *sent.mutable_q() = Waves(shapes.q, 0);
  *sent.mutable_k() = Waves(shapes.k, 1);
  *sent.mutable_v() = Waves(shapes.k, 2);
  grpc::ByteBuffer buffer = attnd::CutIntoSlices(sent.SerializeAsString(), [] { return 64; });
  absl::StatusOr<attnd::RawMessage> raw =
      attnd::RawMessage::Split(buffer, *request.GetDescriptor(), attnd::kNoSkeletonLimit);
  Check(raw.ok() && raw->ParseSkeleton(request).ok(), "what protobuf wrote was not read");

  const auto refused = [](const absl::Status& status) {
    Check(absl::IsInvalidArgument(status) && !status.message().empty(), status.ToString());
    return 0;
  };
  absl::StatusOr<attnd::server::DecodedProblem> decoded = attnd::server::DecodeProblem(request, DataRule::kWhole);
  if (!decoded.ok()) return refused(decoded.status());
  const auto tensors = attnd::server::CopyTensors(*raw, decoded->came, decoded->inputs);
  const absl::StatusOr<attnd::Problem> problem = attnd::Problem::Create(decoded->inputs, kLimits);
  if (!problem.ok()) return refused(problem.status());
  if (const absl::Status contents = problem->CheckContents(); !contents.ok()) return refused(contents);
  Check(attnd::EstimateCost(*problem).ok(), "a problem of a few rows has no cost");
  const std::string difference = attnd::DifferenceFromReference(attnd::WithEveryOutput(decoded->inputs), *one);
  Check(difference.empty(), difference);
  return 0;
}
