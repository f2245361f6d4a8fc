// Plan and Info: what a problem would cost, and what this server is. Both answer at once, without the pool.
// Thread rule: pure functions of the engine's state.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "server/engine.h"

namespace attnd::server {

// Of a caller, who may name tensors of its own. INVALID_ARGUMENT for a problem that means nothing; whether the server
// would take it is part of the answer.
absl::StatusOr<v1::PlanResponse> AnswerPlan(const Engine& engine, const v1::PlanRequest& request,
                                            const std::string& owner = "");

absl::StatusOr<v1::InfoResponse> AnswerInfo(const Engine& engine, const v1::InfoRequest&);

}  // namespace attnd::server
