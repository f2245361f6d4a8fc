// The phases of reference mode: tokens prepared, rows, tokens projected out. Thread rule: as core/run.h says.
#pragma once

#include "core/phases.h"
#include "core/run.h"

namespace attnd {

// All of them; once for a run, which outlives the phases.
void AddReference(Run* run, const ForExecutor& take);

}  // namespace attnd
