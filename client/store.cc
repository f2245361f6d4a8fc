#include "client/store.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>

#include "attnd/v1/store.grpc.pb.h"
#include "client/client_state.h"

namespace attnd::client {

namespace {

using Stub = v1::StoreService::Stub;

// A call of the store that asks: `method` of its stub, again where that may help.
template <typename Request, typename Reply>
absl::StatusOr<Reply> Asked(ClientState& state, const CallOptions& options,
                            grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                            const Request& request) {
  return state.Unary<Reply>(options, [&](const Pool::Place& connection, grpc::ClientContext* context, Reply* reply) {
    return (Stub(connection->channel).*method)(context, request, reply);
  });
}

// One that changes something: once.
template <typename Request, typename Reply>
absl::StatusOr<Reply> Changed(ClientState& state, const CallOptions& options,
                              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                              const Request& request) {
  Reply reply;
  const auto call = [&](const Pool::Place& connection, grpc::ClientContext* context, Reply* to) {
    return (Stub(connection->channel).*method)(context, request, to);
  };
  const absl::Status status = state.Once(state.Deadline(options), call, &reply);
  if (!status.ok()) return status;
  return reply;
}

}  // namespace

Array WithoutBytes(const v1::StoredTensor& stored) {
  return Array{static_cast<DType>(stored.dtype()), {stored.shape().begin(), stored.shape().end()}, {}};
}

Store::Store(Client& client) : state_(*client.state_) {}

absl::StatusOr<v1::StoredTensor> Store::PutTensor(const std::string& name, const Array& tensor,
                                                  const StoredOptions& stored, const CallOptions& options) {
  v1::PutTensorResponse reply;
  v1::PutTensorRequest request;
  v1::PutTensorHeader& header = *request.mutable_header();
  header.set_name(name);
  header.mutable_tensor()->set_dtype(static_cast<v1::DataType>(tensor.dtype));
  header.mutable_tensor()->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  if (stored.append_axis) header.set_append_axis(*stored.append_axis);
  header.set_capacity(stored.capacity);
  header.set_ttl_ms(stored.ttl_ms);
  const auto call = [&](const Pool::Place& connection, grpc::ClientContext* context, v1::PutTensorResponse* to) {
    Stub stub(connection->channel);
    const std::unique_ptr<grpc::ClientWriter<v1::PutTensorRequest>> writer = stub.PutTensor(context, to);
    bool open = writer->Write(request);
    const auto piece = static_cast<std::size_t>(std::max<std::int64_t>(state_.options.piece_bytes, 1));
    for (std::size_t at = 0; open && at < tensor.bytes.size(); at += piece) {
      request.set_data(tensor.bytes.substr(at, piece));
      open = writer->Write(request);
    }
    writer->WritesDone();
    return writer->Finish();
  };
  const absl::Status status = state_.Once(state_.Deadline(options), call, &reply);
  if (!status.ok()) return status;
  return reply.tensor();
}

absl::StatusOr<std::vector<v1::StoredTensor>> Store::AppendTensors(const v1::AppendTensorsRequest& request,
                                                                   const CallOptions& options) {
  const absl::StatusOr<v1::AppendTensorsResponse> reply = Changed(state_, options, &Stub::AppendTensors, request);
  if (!reply.ok()) return reply.status();
  return std::vector<v1::StoredTensor>(reply->tensors().begin(), reply->tensors().end());
}

absl::StatusOr<v1::StoredTensor> Store::GetTensor(const std::string& name, const CallOptions& options) {
  v1::GetTensorRequest request;
  request.set_name(name);
  const absl::StatusOr<v1::GetTensorResponse> reply = Asked(state_, options, &Stub::GetTensor, request);
  if (!reply.ok()) return reply.status();
  return reply->tensor();
}

absl::StatusOr<std::vector<v1::StoredTensor>> Store::ListTensors(const CallOptions& options) {
  const absl::StatusOr<v1::ListTensorsResponse> reply =
      Asked(state_, options, &Stub::ListTensors, v1::ListTensorsRequest());
  if (!reply.ok()) return reply.status();
  return std::vector<v1::StoredTensor>(reply->tensors().begin(), reply->tensors().end());
}

absl::Status Store::DeleteTensor(const std::string& name, const CallOptions& options) {
  v1::DeleteTensorRequest request;
  request.set_name(name);
  return Changed(state_, options, &Stub::DeleteTensor, request).status();
}

absl::StatusOr<v1::StoredWeightSet> Store::PutWeightSet(const v1::PutWeightSetRequest& request,
                                                        const CallOptions& options) {
  const absl::StatusOr<v1::PutWeightSetResponse> reply = Changed(state_, options, &Stub::PutWeightSet, request);
  if (!reply.ok()) return reply.status();
  return reply->weight_set();
}

absl::StatusOr<v1::StoredWeightSet> Store::GetWeightSet(const std::string& name, std::int64_t version,
                                                        const CallOptions& options) {
  v1::GetWeightSetRequest request;
  request.set_name(name);
  request.set_version(version);
  const absl::StatusOr<v1::GetWeightSetResponse> reply = Asked(state_, options, &Stub::GetWeightSet, request);
  if (!reply.ok()) return reply.status();
  return reply->weight_set();
}

absl::StatusOr<std::vector<v1::StoredWeightSet>> Store::ListWeightSets(const CallOptions& options) {
  const absl::StatusOr<v1::ListWeightSetsResponse> reply =
      Asked(state_, options, &Stub::ListWeightSets, v1::ListWeightSetsRequest());
  if (!reply.ok()) return reply.status();
  return std::vector<v1::StoredWeightSet>(reply->weight_sets().begin(), reply->weight_sets().end());
}

absl::Status Store::DeleteWeightSet(const std::string& name, std::int64_t version, const CallOptions& options) {
  v1::DeleteWeightSetRequest request;
  request.set_name(name);
  request.set_version(version);
  return Changed(state_, options, &Stub::DeleteWeightSet, request).status();
}

}  // namespace attnd::client
