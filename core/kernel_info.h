// What the compute kernels found on this machine, and limits on what they use of it. Thread rule: the two setters
// before any work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace attnd {

struct KernelInfo {
  std::vector<std::string> instruction_sets_found;
  std::string instruction_set_used;
};
KernelInfo GetKernelInfo();

// OK, or FAILED_PRECONDITION on a machine without AVX2 and FMA.
absl::Status CheckMachine();

// AVX2 at most, whatever the machine has, so that answers are the same bytes on every machine. Before any work.
void LimitToAvx2();

// Bounds how many generated kernels are kept; the flag kernel_cache_max.
void SetKernelCacheMax(std::int64_t kernels);

}  // namespace attnd
