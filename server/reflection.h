// grpc.reflection.v1alpha, behind --reflection. gRPC's own reflection library is not linked: it turns
// itself on by being linked, and serves from threads of its own. Thread rule: called by gRPC's threads; keeps no state
// between questions.
#pragma once

#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/call.h"

namespace attnd::server {

CallReactor* StartReflection(Engine& engine, CallContext* context, CallHead head);

// The answer to one question.
grpc::reflection::v1alpha::ServerReflectionResponse AnswerReflection(
    const grpc::reflection::v1alpha::ServerReflectionRequest& request);

}  // namespace attnd::server
