// The only writer of answers. Tensor bytes are not copied: a message is a small head, then slices that keep their
// memory alive until gRPC has sent them.
//
//   AttendResponse        = output(1) extras(2)* statistics(3)
//   AttendStreamResponse  = problem_id(1) (block(2) | closing(3))
// Thread rule: pure functions.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "attnd/v1/attention.pb.h"
#include "core/problem.h"
#include "proto/wire/slice_writer.h"

namespace attnd::server {

struct NamedOutput {
  OutputKind kind = OutputKind::kOutput;
  OwnedBytes data;
};

// `outputs` starts with kOutput and goes on in the order asked.
grpc::ByteBuffer EncodeAttendResponse(const Problem& problem, const std::vector<NamedOutput>& outputs,
                                      const v1::Statistics& statistics);

// `head` is the block without its data.
grpc::ByteBuffer EncodeBlock(std::uint64_t problem_id, const v1::Block& head, OwnedBytes data);

// `status` becomes the closing's error unless it is OK.
grpc::ByteBuffer EncodeClosing(std::uint64_t problem_id, const absl::Status& status, v1::ProblemClosing closing);

grpc::ByteBuffer EncodeMessage(const google::protobuf::Message& message);

v1::DataType ToWire(DType dtype);
v1::OutputKind ToWire(OutputKind kind);

// OutputKind::kOutput, then the extras in the order asked.
std::vector<OutputKind> ReplyOrder(const Problem& problem);

// Shapes of everything wanted, as blocks count them.
void AddOutputShapes(const Problem& problem, v1::ProblemClosing& closing);

}  // namespace attnd::server
