#include "core/kernel_info.h"

#include <utility>

#include "absl/status/status.h"
#include "core/gemm.h"
#include "core/softmax.h"

namespace attnd {

KernelInfo GetKernelInfo() {
  KernelInfo info;
  const std::pair<const char*, bool> sets[] = {{"sse4.2", __builtin_cpu_supports("sse4.2")},
                                               {"avx2", __builtin_cpu_supports("avx2")},
                                               {"fma", __builtin_cpu_supports("fma")},
                                               {"avx512f", __builtin_cpu_supports("avx512f")},
                                               {"avx512bw", __builtin_cpu_supports("avx512bw")},
                                               {"avx512vnni", __builtin_cpu_supports("avx512vnni")},
                                               {"avx512bf16", __builtin_cpu_supports("avx512bf16")}};
  for (const auto& [name, found] : sets) {
    if (found) info.instruction_sets_found.emplace_back(name);
  }
  info.instruction_set_used = std::string(SimdTargetName()) + ", " + GemmLibraryText();
  if (HasPairProducts()) info.instruction_set_used += ", bfloat16 pairs";
  return info;
}

absl::Status CheckMachine() {
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return absl::OkStatus();
  return absl::FailedPreconditionError("this processor lacks AVX2 or FMA, and attnd needs both");
}

void LimitToAvx2() {
  LimitSimdToAvx2();
  LimitGemmToAvx2();
}

void SetKernelCacheMax(std::int64_t kernels) { SetGemmCacheMax(kernels); }

}  // namespace attnd
