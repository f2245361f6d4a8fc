#include "server/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <array>
#include <set>
#include <string>
#include <utility>

#include "attnd/v1/attention.pb.h"
#include "attnd/v1/store.pb.h"
#include "core/clock.h"
#include "grpc/health/v1/health.pb.h"
#include "inference/inference.pb.h"
#include "server/receive.h"
#include "server/wire/encode.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

// The files of the services that this server has.
std::array<const FileDescriptor*, 5> ServiceFiles() {
  return {v1::AttendRequest::descriptor()->file(), v1::PutTensorRequest::descriptor()->file(),
          inference::ModelInferRequest::descriptor()->file(),
          grpc::health::v1::HealthCheckRequest::descriptor()->file(), ServerReflectionRequest::descriptor()->file()};
}

void SetError(grpc::StatusCode code, std::string message, ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(std::move(message));
}

// A file, then what it imports, each once.
void AddFile(const FileDescriptor& file, std::set<std::string>& added, ServerReflectionResponse& response) {
  if (!added.insert(file.name()).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response.mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), added, response);
}

void AnswerFile(const FileDescriptor* file, ServerReflectionResponse& response) {
  if (file == nullptr) return SetError(grpc::StatusCode::NOT_FOUND, "not known to this server", response);
  std::set<std::string> added;
  AddFile(*file, added, response);
}

// One stream: question, answer, question, answer, until the peer has no more.
class ReflectionStream final : public CallReactor {
 public:
  ReflectionStream(Engine& engine, CallHead head) : engine_(engine), head_(std::move(head)) { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());
    Reservation held(head_.AccountIn(engine_));
    ServerReflectionRequest request;
    if (const absl::Status status = Receive(engine_, request_, request, held).status(); !status.ok())
      return End(status);
    response_ = EncodeMessage(AnswerReflection(request));
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the caller went away"));
    StartRead(&request_);
  }

  void OnDone() override {
    RequestRecord record = head_.Record();
    record.status = status_;
    record.total = Now() - head_.arrived;
    engine_.Done(record);
    delete this;
  }

 private:
  void End(const absl::Status& status) {
    status_ = status;
    Finish(ToGrpcStatus(status));
  }

  Engine& engine_;
  const CallHead head_;
  absl::Status status_;
  grpc::ByteBuffer request_, response_;
};

}  // namespace

ServerReflectionResponse AnswerReflection(const ServerReflectionRequest& request) {
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      AnswerFile(pool.FindFileByName(request.file_by_filename()), response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      AnswerFile(pool.FindFileContainingSymbol(request.file_containing_symbol()), response);
      break;
    case ServerReflectionRequest::kListServices:
      for (const FileDescriptor* file : ServiceFiles()) {
        for (int i = 0; i < file->service_count(); ++i) {
          response.mutable_list_services_response()->add_service()->set_name(file->service(i)->full_name());
        }
      }
      break;
    case ServerReflectionRequest::kFileContainingExtension:
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      SetError(grpc::StatusCode::NOT_FOUND, "proto3: there are no extensions", response);
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      SetError(grpc::StatusCode::INVALID_ARGUMENT, "message_request: absent", response);
      break;
  }
  return response;
}

CallReactor* StartReflection(Engine& engine, CallContext*, CallHead head) {
  return new ReflectionStream(engine, std::move(head));
}

}  // namespace attnd::server
