// grpc.reflection.v1alpha, on callbacks, behind --reflection. gRPC's own reflection library is not linked: it turns
// itself on by being linked, and serves from threads of its own. Thread rule: called by gRPC's threads; keeps no state
// between questions.
#pragma once

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"

namespace attnd::server {

class ReflectionService final : public grpc::reflection::v1alpha::ServerReflection::CallbackService {
 public:
  grpc::ServerBidiReactor<grpc::reflection::v1alpha::ServerReflectionRequest,
                          grpc::reflection::v1alpha::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext* context) override;
};

// The answer to one question.
grpc::reflection::v1alpha::ServerReflectionResponse AnswerReflection(
    const grpc::reflection::v1alpha::ServerReflectionRequest& request);

}  // namespace attnd::server
