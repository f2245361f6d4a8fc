// The calls of StoreService that are about weight sets. What changes a set runs on WeightFiles' thread, beside which
// gRPC's go on. Thread rule: called by gRPC's threads.
#pragma once

#include "absl/status/statusor.h"
#include "attnd/v1/store.pb.h"
#include "server/call.h"
#include "server/engine.h"

namespace attnd::server {

CallReactor* StartPutWeightSet(Engine& engine, CallContext* context, CallHead head);
CallReactor* StartDeleteWeightSet(Engine& engine, CallContext* context, CallHead head);

absl::StatusOr<v1::GetWeightSetResponse> AnswerGetWeightSet(const Engine& engine,
                                                            const v1::GetWeightSetRequest& request);
absl::StatusOr<v1::ListWeightSetsResponse> AnswerListWeightSets(const Engine& engine, const v1::ListWeightSetsRequest&);

}  // namespace attnd::server
