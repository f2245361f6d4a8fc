#include "server/store_calls.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attnd/v1/store.pb.h"
#include "server/receive.h"
#include "server/small_call.h"
#include "server/store.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

// The most that the copies of so many bytes of one tensor take while they are made.
std::int64_t CopiesBytes(std::int64_t data_bytes) {
  constexpr std::int64_t kOneBytes = 64;  // a DataCopy, and what RawMessage keeps of it
  return kOneBytes * std::min(data_bytes, kStoredRunsMax);
}

v1::StoredTensor ToMessage(const StoredInfo& info) {
  v1::StoredTensor message;
  message.set_name(info.spec.name);
  message.set_dtype(ToWire(info.spec.dtype));
  for (const std::int64_t size : info.spec.shape) message.add_shape(size);
  if (info.spec.append_axis.has_value()) message.set_append_axis(*info.spec.append_axis);
  message.set_capacity(info.spec.capacity);
  message.set_bytes(info.bytes);
  message.set_ttl_ms(absl::ToInt64Milliseconds(info.spec.ttl));
  message.set_calls(info.calls);
  return message;
}

// The header, then bytes; the tensor gets its name when the peer has no more to say and all of it came.
class PutTensorCall final : public UnaryCall {
 public:
  PutTensorCall(Engine& engine, CallContext* context, CallHead head)
      : UnaryCall(engine, context, std::move(head)), held_(head_.AccountIn(engine)) {}

 private:
  absl::Status Answer(grpc::ByteBuffer& request) override {
    absl::Status status = held_.GrowTo("bytes of the message", static_cast<std::int64_t>(request.Length()));
    if (!status.ok()) return status;
    v1::PutTensorRequest message;
    absl::StatusOr<RawMessage> raw = Receive(engine_, request, message, held_);
    if (!raw.ok()) return raw.status();
    if (status = CheckKnown(message); !status.ok()) return status;
    DataExtent data;
    switch (message.part_case()) {
      case v1::PutTensorRequest::kHeader:
        if (tensor_ != nullptr) return absl::InvalidArgumentError("part: a second header, expected data");
        if (status = Begin(message.header()); !status.ok()) return status;
        data = ExtentOf(message.header().tensor().data());
        break;
      case v1::PutTensorRequest::kData: data = ExtentOf(message.data()); break;
      case v1::PutTensorRequest::PART_NOT_SET: break;
    }
    if (tensor_ == nullptr) return absl::InvalidArgumentError("part: no header yet, expected it in the first message");
    if (data.bytes > tensor_->data_bytes() - came_) {
      return absl::InvalidArgumentError(
          absl::StrCat("data: ", data.bytes, " bytes after ", came_, ", expected ", tensor_->data_bytes(), " in all"));
    }
    status = held_.GrowTo("bytes of the message", held_.bytes() + CopiesBytes(data.bytes));
    if (!status.ok()) return status;
    std::vector<DataCopy> copies;
    tensor_->AddCopies(data, came_, copies);
    raw->CopyOut(std::move(copies));
    came_ += data.bytes;
    held_.ShrinkTo(0);
    ReadNext();
    return absl::OkStatus();
  }

  absl::Status AnswerEnd() override {
    if (came_ < tensor_->data_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data: the requests ended after ", came_, " bytes, expected ", tensor_->data_bytes()));
    }
    v1::PutTensorResponse response;
    *response.mutable_tensor() = ToMessage(engine_.tensors->Publish(std::move(tensor_)));
    End(EncodeMessage(response));
    return absl::OkStatus();
  }

  absl::Status Begin(const v1::PutTensorHeader& header) {
    const absl::StatusOr<InputTensor> decoded = DecodeTensor(header.tensor(), "header.tensor", DataRule::kWholeOrLater);
    if (!decoded.ok()) return decoded.status();
    StoredSpec spec;
    spec.owner = head_.caller.name();
    spec.name = header.name();
    spec.dtype = decoded->dtype;
    spec.shape = decoded->shape;
    if (header.has_append_axis()) spec.append_axis = header.append_axis();
    spec.capacity = header.capacity();
    spec.ttl = absl::Milliseconds(header.ttl_ms());
    absl::StatusOr<std::shared_ptr<StoredTensor>> tensor =
        engine_.tensors->Make(std::move(spec), head_.caller.policy().store_bytes_max);
    if (!tensor.ok()) return tensor.status();
    tensor_ = *std::move(tensor);
    return absl::OkStatus();
  }

  void Release() override {
    tensor_.reset();
    held_.ShrinkTo(0);
  }

  Reservation held_;
  std::shared_ptr<StoredTensor> tensor_;  // from its header until it has its name
  std::int64_t came_ = 0;                 // of its bytes
};

class AppendTensorsCall final : public UnaryCall {
 public:
  AppendTensorsCall(Engine& engine, CallContext* context, CallHead head)
      : UnaryCall(engine, context, std::move(head)), held_(head_.AccountIn(engine)) {}

 private:
  absl::Status Answer(grpc::ByteBuffer& request) override {
    absl::Status status = held_.GrowTo("bytes of the message", record_.request_bytes);
    if (!status.ok()) return status;
    v1::AppendTensorsRequest message;
    absl::StatusOr<RawMessage> raw = Receive(engine_, request, message, held_);
    if (!raw.ok()) return raw.status();
    if (status = CheckKnown(message); !status.ok()) return status;
    std::vector<TensorStore::Rows> appends;
    std::int64_t bytes = held_.bytes();
    for (int i = 0; i < message.appends_size(); ++i) {
      const v1::TensorAppend& from = message.appends(i);
      const absl::StatusOr<InputTensor> rows =
          DecodeTensor(from.rows(), absl::StrCat("appends[", i, "].rows"), DataRule::kWhole);
      if (!rows.ok()) return rows.status();
      appends.push_back({from.name(), *rows, ExtentOf(from.rows().data())});
      if (from.has_length_before()) appends.back().length_before = from.length_before();
      bytes += CopiesBytes(appends.back().data.bytes);
    }
    if (status = held_.GrowTo("bytes of the message", bytes); !status.ok()) return status;
    const absl::StatusOr<std::vector<StoredInfo>> infos = engine_.tensors->Append(
        head_.caller.name(), appends, [&](std::vector<DataCopy> copies) { raw->CopyOut(std::move(copies)); });
    if (!infos.ok()) return infos.status();
    v1::AppendTensorsResponse response;
    for (const StoredInfo& info : *infos) *response.add_tensors() = ToMessage(info);
    End(EncodeMessage(response));
    return absl::OkStatus();
  }

  void Release() override { held_.ShrinkTo(0); }

  Reservation held_;
};

}  // namespace

CallReactor* StartPutTensor(Engine& engine, CallContext* context, CallHead head) {
  return StartCall<PutTensorCall>(engine, context, std::move(head));
}

CallReactor* StartAppendTensors(Engine& engine, CallContext* context, CallHead head) {
  return StartCall<AppendTensorsCall>(engine, context, std::move(head));
}

CallReactor* StartGetTensor(Engine& engine, CallContext* context, CallHead head) {
  const std::string owner = head.caller.name();
  return StartSmallCall<v1::GetTensorRequest>(
      engine, context, std::move(head),
      [&engine, owner](const v1::GetTensorRequest& request) -> absl::StatusOr<v1::GetTensorResponse> {
        const absl::StatusOr<StoredInfo> info = engine.tensors->Get(owner, request.name());
        if (!info.ok()) return AtField("name", info.status());
        v1::GetTensorResponse response;
        *response.mutable_tensor() = ToMessage(*info);
        return response;
      });
}

CallReactor* StartListTensors(Engine& engine, CallContext* context, CallHead head) {
  const std::string owner = head.caller.name();
  return StartSmallCall<v1::ListTensorsRequest>(
      engine, context, std::move(head),
      [&engine, owner](const v1::ListTensorsRequest&) -> absl::StatusOr<v1::ListTensorsResponse> {
        v1::ListTensorsResponse response;
        for (const StoredInfo& info : engine.tensors->List(owner)) *response.add_tensors() = ToMessage(info);
        return response;
      });
}

CallReactor* StartDeleteTensor(Engine& engine, CallContext* context, CallHead head) {
  const std::string owner = head.caller.name();
  return StartSmallCall<v1::DeleteTensorRequest>(
      engine, context, std::move(head),
      [&engine, owner](const v1::DeleteTensorRequest& request) -> absl::StatusOr<v1::DeleteTensorResponse> {
        const absl::Status status = engine.tensors->Delete(owner, request.name());
        if (!status.ok()) return AtField("name", status);
        return v1::DeleteTensorResponse();
      });
}

}  // namespace attnd::server
