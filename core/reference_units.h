// The units of reference mode: tokens prepared, rows, tokens projected out. Each returns what is left of it when it
// gave way. Thread rule: as core/run.h says.
#pragma once

#include <cstdint>
#include <memory>

#include "core/run.h"

namespace attnd {

// One token's projections and rotary embedding; unit is Reference::Prepare's.
std::unique_ptr<Rest> BeginReferencePrepare(Run& run, std::int64_t unit, WorkerContext& context);

// One row, its output and whatever else is wanted.
std::unique_ptr<Rest> BeginReferenceRow(Run& run, const Place& place, WorkerContext& context);

// [Hq * d_v] of one token times W_O; token in [0, B * Nq).
std::unique_ptr<Rest> BeginReferenceProjectOut(Run& run, std::int64_t token, WorkerContext& context);

}  // namespace attnd
