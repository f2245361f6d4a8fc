// attnd.v1.AttentionService on gRPC's callback API. Messages arrive raw, so that bytes that are no message are answered
// with words (gRPC's own parser would say UNIMPLEMENTED), and answers leave without a copy. Thread rule: called by
// gRPC's threads.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "attnd/v1/attention.grpc.pb.h"
#include "server/engine.h"

namespace attnd::server {

using RawAttentionService = v1::AttentionService::WithRawCallbackMethod_Attend<
    v1::AttentionService::WithRawCallbackMethod_AttendStream<v1::AttentionService::WithRawCallbackMethod_Plan<
        v1::AttentionService::WithRawCallbackMethod_Info<v1::AttentionService::Service>>>>;

class AttentionServiceImpl final : public RawAttentionService {
 public:
  explicit AttentionServiceImpl(Engine& engine) : engine_(engine) {}

  grpc::ServerUnaryReactor* Attend(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AttendStream(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Plan(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;

 private:
  Engine& engine_;
};

}  // namespace attnd::server
