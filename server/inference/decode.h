// What a ModelInferRequest says, as the AttendRequest that says the same: so both protocols have one decoder of
// problems.
//
// Nothing of a tensor's size is made or copied: raw contents and typed ones stay where they came. Names, datatypes and
// which contents there are is judged here; sizes and meaning by DecodeProblem and Problem::Create. Thread rule: pure
// functions.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attnd/v1/attention.pb.h"
#include "inference/inference.pb.h"
#include "proto/wire/raw_message.h"
#include "server/budget.h"
#include "server/inference/models.h"

namespace attnd::server {

struct InferProblem {
  std::unique_ptr<v1::AttendRequest> native =
      std::make_unique<v1::AttendRequest>();  // as RawMessage::ParseSkeleton would have made it
  std::vector<OutputKind> replied;            // in the order of the reply
  absl::Duration timeout = absl::InfiniteDuration();
};

// `request` is from ParseSkeleton on `raw`, which refers to it from here on where its contents are typed. `held` grows
// with lists. INVALID_ARGUMENT in this protocol's words, RESOURCE_EXHAUSTED.
absl::StatusOr<InferProblem> DecodeInfer(const std::shared_ptr<const inference::ModelInferRequest>& request,
                                         const Model& model, RawMessage& raw, Reservation& held);

// INVALID_ARGUMENT where `native` has neither the bytes nor the name of an input that the model cannot do without.
absl::Status CheckRequired(const Model& model, const v1::AttendRequest& native);

}  // namespace attnd::server
