#include "server/plan_info.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/kernel_info.h"
#include "server/wire/encode.h"

namespace attnd::server {
namespace {

// The high-water mark of resident memory, from the kernel; 0 where it does not say.
std::int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view text = line;
    if (!absl::ConsumePrefix(&text, "VmHWM:") || !absl::ConsumeSuffix(&text, "kB")) continue;
    std::int64_t kib = 0;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &kib)) return kib * 1024;
  }
  return 0;
}

}  // namespace

absl::StatusOr<v1::PlanResponse> AnswerPlan(const Engine& engine, const v1::PlanRequest& request,
                                            const std::string& owner) {
  if (absl::Status status = CheckKnown(request); !status.ok()) return status;
  if (!request.has_problem())
    return absl::InvalidArgumentError("problem: absent, expected an AttendRequest without data");
  if (request.layers() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("layers: ", request.layers(), ", expected at least 0"));
  }
  const std::int64_t layers = request.layers() == 0 ? 1 : request.layers();
  const absl::StatusOr<DecodedProblem> decoded = Decode(engine, owner, request.problem(), DataRule::kNone);
  if (!decoded.ok()) return decoded.status();
  const absl::StatusOr<Understood> understood = Understand(engine, decoded->inputs, Delivery::kStream);
  if (!understood.ok()) return understood.status();
  const absl::StatusOr<Cost> all_layers = EstimateCost(*understood->problem, layers);
  if (!all_layers.ok()) return all_layers.status();

  v1::PlanResponse plan;
  plan.set_scores_per_head(all_layers->scores_per_head);
  plan.set_score_multiply_adds_per_head(all_layers->score_multiply_adds_per_head);
  plan.set_multiply_adds_per_head(all_layers->multiply_adds_per_head);
  plan.set_multiply_adds(all_layers->multiply_adds);
  plan.set_flops(all_layers->flops);
  plan.set_flops_after_exclusion(all_layers->flops_after_exclusion);
  plan.set_request_bytes(understood->cost.input_bytes);
  plan.set_reply_bytes(understood->cost.reply_bytes);
  for (const NamedBytes& item : understood->demand.memory) {
    v1::MemoryItem& memory = *plan.add_memory();
    memory.set_name(std::string(item.name));
    memory.set_bytes(item.bytes);
  }
  plan.set_memory_bytes(understood->demand.memory_bytes);
  plan.set_naive_score_bytes_per_head(all_layers->naive_score_bytes_per_head);
  plan.set_naive_score_bytes(all_layers->naive_score_bytes);
  plan.set_predicted_compute_us(absl::ToInt64Microseconds(
      engine.admission.PredictCompute(*understood->problem, all_layers->flops_after_exclusion)));
  const absl::Status admitted = engine.admission.CheckEver(understood->demand);
  plan.set_admitted(admitted.ok());
  plan.set_refusal(std::string(admitted.message()));
  return plan;
}

absl::StatusOr<v1::InfoResponse> AnswerInfo(const Engine& engine, const v1::InfoRequest&) {
  v1::InfoResponse info;
  info.set_version(ATTND_VERSION);
  const KernelInfo kernels = GetKernelInfo();
  for (const std::string& name : kernels.instruction_sets_found) info.add_instruction_sets_found(name);
  info.set_instruction_set_used(kernels.instruction_set_used);
  info.set_threads(engine.executor.threads());
  for (const FlagValue& flag : NumberFlags(engine.config)) {
    v1::Limit& limit = *info.add_limits();
    limit.set_flag(flag.flag);
    limit.set_value(flag.value);
  }
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    info.add_dtypes(ToWire(dtype));
  }
  const google::protobuf::Descriptor& options = *v1::Options::descriptor();
  for (int i = 0; i < options.field_count(); ++i) info.add_options(options.field(i)->name());
  info.set_memory_bytes_used(engine.budget.bytes_used());
  info.set_compute_given_back_us(engine.given_back_us);
  info.set_memory_peak_resident_bytes(PeakResidentBytes());
  return info;
}

}  // namespace attnd::server
