// The phases before attention, from x to turned q and k, and the one after it, through W_O: of tiled mode, except
// AddProjectedOutputs. Each may be called once for a run, which outlives the phases. Thread rule: as core/run.h says.
#pragma once

#include "core/phases.h"
#include "core/run.h"

namespace attnd {

// x [B, N, d_model] times W_Q, W_K and W_V.
void AddProjection(Run* run, const ForExecutor& take);

// projected_q, projected_k and projected_v, as far as they are wanted, to the sink; in either mode.
void AddProjectedOutputs(Run* run, const ForExecutor& take);

// Rotary embedding of k, then of q.
void AddRotary(Run* run, const ForExecutor& take);

// Attended heads [B, N, Hq * d_v] times W_O, to the sink.
void AddProjectOut(Run* run, const ForExecutor& take);

}  // namespace attnd
