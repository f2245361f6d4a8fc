// The wire decoder under arbitrary bytes: a message -> decode -> Problem::Create -> EstimateCost, by each of the three
// rules for tensor data; a problem that turns out tiny is computed too. Nothing may crash, and no refusal may be
// INTERNAL.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "attnd/v1/attention.pb.h"
#include "core/attention.h"
#include "core/cost.h"
#include "server/wire/decode.h"

namespace {

using attnd::server::DataRule;

constexpr attnd::ProblemLimits kLimits = {1 << 12, 1 << 16};
constexpr std::int64_t kTinyFlops = 1 << 16;
constexpr std::int64_t kTinyBytes = 1 << 20;

void Check(bool holds) {
  if (!holds) std::abort();
}

attnd::Executor& Pool() {
  static attnd::Executor* pool = new attnd::Executor(1);
  return *pool;
}

void Decode(const attnd::v1::AttendRequest& request, DataRule rule) {
  const absl::StatusOr<attnd::ProblemInputs> inputs = attnd::server::DecodeProblem(request, rule);
  if (!inputs.ok()) return Check(inputs.status().code() == absl::StatusCode::kInvalidArgument);
  const absl::StatusOr<attnd::Problem> problem = attnd::Problem::Create(*inputs, kLimits);
  if (!problem.ok()) return Check(problem.status().code() != absl::StatusCode::kInternal);
  const absl::StatusOr<attnd::Cost> cost = attnd::EstimateCost(*problem);
  if (!cost.ok()) return Check(cost.status().code() == absl::StatusCode::kInvalidArgument);
  Check(cost->flops >= 0 && cost->reply_bytes >= 0 && cost->flops_after_exclusion <= cost->flops);
  if (rule != DataRule::kWhole || cost->flops > kTinyFlops || cost->reply_bytes > kTinyBytes) return;
  if (!problem->CheckContents().ok()) return;
  Check(attnd::Attend(*problem, Pool()).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  attnd::v1::AttendRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  for (const DataRule rule : {DataRule::kWhole, DataRule::kWholeOrLater, DataRule::kNone}) Decode(request, rule);
  return 0;
}
