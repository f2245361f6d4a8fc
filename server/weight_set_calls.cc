#include "server/weight_set_calls.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/strip.h"
#include "server/receive.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

v1::StoredWeightSet StoredOf(const WeightSets::Listed& listed) {
  const WeightSet& set = *listed.set;
  v1::StoredWeightSet wire;
  wire.set_name(set.head.name);
  wire.set_version(set.head.version);
  wire.set_owner(set.head.owner);
  wire.set_from_file(set.head.from_file);
  wire.set_bytes(set.bytes);
  wire.set_calls(listed.calls);
  v1::Projection& projection = *wire.mutable_projection();
  projection.set_q_heads(set.projection.q_heads);
  projection.set_kv_heads(set.projection.kv_heads);
  for (const auto& [role, member] : kProjectionTensors) {
    const std::optional<InputTensor>& tensor = set.projection.*member;
    if (!tensor) continue;
    const google::protobuf::FieldDescriptor* const field =
        v1::Projection::descriptor()->FindFieldByName(std::string(role));
    auto& to = static_cast<v1::Tensor&>(*projection.GetReflection()->MutableMessage(&projection, field));
    to.set_dtype(ToWire(tensor->dtype));
    for (const std::int64_t size : tensor->shape) to.add_shape(size);
  }
  if (set.rotary) {
    v1::Rotary& rotary = *wire.mutable_rotary();
    rotary.set_style(set.rotary->style == RotaryStyle::kInterleaved ? v1::ROTARY_STYLE_INTERLEAVED
                                                                    : v1::ROTARY_STYLE_HALF);
    rotary.set_rotary_dim(set.rotary->rotary_dim);
    if (set.rotary->rope_base) rotary.set_rope_base(*set.rotary->rope_base);
  }
  return wire;
}

// A call that changes a set: its message is received on gRPC's thread, the rest is WeightFiles' thread's. `change` is
// called with the request and its bytes, and gives StatusOr<Response>.
template <typename Request, typename Change>
class ChangeCall final : public UnaryCall {
 public:
  ChangeCall(Engine& engine, CallContext* context, CallHead head, Change change)
      : UnaryCall(engine, context, std::move(head)), change_(std::move(change)), held_(head_.AccountIn(engine)) {}

 private:
  absl::Status Answer(grpc::ByteBuffer& message) override {
    absl::StatusOr<Lifecycle::Work> work = engine_.lifecycle.Enter();
    if (!work.ok()) return work.status();
    work_ = *std::move(work);
    if (absl::Status status = held_.GrowTo("bytes of the message", record_.request_bytes); !status.ok()) return status;
    absl::StatusOr<RawMessage> raw = Receive(engine_, message, request_, held_);
    if (!raw.ok()) return raw.status();
    raw_ = *std::move(raw);
    engine_.weight_files->Do([self = std::static_pointer_cast<ChangeCall>(shared_from_this())] {
      const absl::Status status = CatchBadAlloc([&] { return self->Run(); });
      if (!status.ok()) self->End(status);
    });
    return absl::OkStatus();
  }

  absl::Status Run() {
    const auto response = change_(engine_, head_.caller, request_, raw_);
    raw_ = RawMessage();
    if (!response.ok()) return response.status();
    End(EncodeMessage(*response));
    return absl::OkStatus();
  }

  void Release() override {
    held_.ShrinkTo(0);
    work_.reset();
  }

  const Change change_;
  Lifecycle::Work work_;
  Reservation held_;
  Request request_;
  RawMessage raw_;
};

template <typename Request, typename Change>
CallReactor* StartChange(Engine& engine, CallContext* context, CallHead head, Change change) {
  return StartCall<ChangeCall<Request, Change>>(engine, context, std::move(head), change);
}

// The store is locked no longer than this takes.
absl::StatusOr<DecodedWeights> Decode(Engine& engine, const std::string& owner,
                                      const v1::PutWeightSetRequest& request) {
  StoredNames names(*engine.tensors, owner);
  return DecodeWeights(request, &names);
}

absl::StatusOr<v1::PutWeightSetResponse> Put(Engine& engine, const Caller& caller,
                                             const v1::PutWeightSetRequest& request, RawMessage& raw) {
  absl::StatusOr<DecodedWeights> decoded = Decode(engine, caller.name(), request);
  if (!decoded.ok()) return decoded.status();
  const ProjectionInputs& came = decoded->projection;
  absl::StatusOr<std::shared_ptr<WeightSet>> set =
      engine.weight_sets.Make({request.name(), request.version(), caller.name()}, came, std::move(decoded->rotary),
                              caller.policy().store_bytes_max);
  if (!set.ok()) return set.status();
  std::vector<DataExtent> extents;
  std::vector<FormWriter> writers;
  for (const auto& [role, member] : kProjectionTensors) {
    const std::optional<InputTensor>& tensor = came.*member;
    if (!tensor) continue;
    FormWriter writer = WriterOf(**set, came, role, member);
    if (tensor->data != nullptr) {  // a stored one
      writer.Append({reinterpret_cast<const char*>(tensor->data), static_cast<std::size_t>(TensorBytes(*tensor))});
      continue;
    }
    const auto extent = std::find_if(decoded->came.begin(), decoded->came.end(), [role = role](const TensorExtent& t) {
      return absl::StripPrefix(t.path, "projection.") == role;
    });
    extents.push_back(extent->extent);
    writers.push_back(std::move(writer));
  }
  raw.TakeOut(extents, [&](std::size_t index, absl::string_view part) { writers[index].Append(part); });
  if (absl::Status status = engine.weight_files->Save(**set); !status.ok()) return status;
  engine.weight_sets.Publish(*set);
  v1::PutWeightSetResponse response;
  *response.mutable_weight_set() = StoredOf(WeightSets::Listed{*set});
  return response;
}

absl::StatusOr<v1::DeleteWeightSetResponse> Delete(Engine& engine, const Caller& caller,
                                                   const v1::DeleteWeightSetRequest& request, RawMessage&) {
  if (absl::Status status = CheckKnown(request); !status.ok()) return status;
  const absl::StatusOr<std::vector<std::shared_ptr<const WeightSet>>> sets =
      engine.weight_sets.ToRemove(caller.name(), request.name(), request.version());
  if (!sets.ok()) return sets.status();
  for (const std::shared_ptr<const WeightSet>& set : *sets) {
    if (absl::Status status = engine.weight_files->Erase(set->head); !status.ok()) return status;
    engine.weight_sets.Remove(set->head);
  }
  return v1::DeleteWeightSetResponse();
}

}  // namespace

CallReactor* StartPutWeightSet(Engine& engine, CallContext* context, CallHead head) {
  return StartChange<v1::PutWeightSetRequest>(engine, context, std::move(head), &Put);
}

CallReactor* StartDeleteWeightSet(Engine& engine, CallContext* context, CallHead head) {
  return StartChange<v1::DeleteWeightSetRequest>(engine, context, std::move(head), &Delete);
}

absl::StatusOr<v1::GetWeightSetResponse> AnswerGetWeightSet(const Engine& engine,
                                                            const v1::GetWeightSetRequest& request) {
  const absl::StatusOr<WeightSets::Listed> found = engine.weight_sets.Find("name", request.name(), request.version());
  if (!found.ok()) return found.status();
  v1::GetWeightSetResponse response;
  *response.mutable_weight_set() = StoredOf(*found);
  return response;
}

absl::StatusOr<v1::ListWeightSetsResponse> AnswerListWeightSets(const Engine& engine,
                                                                const v1::ListWeightSetsRequest&) {
  v1::ListWeightSetsResponse response;
  for (const WeightSets::Listed& listed : engine.weight_sets.List()) *response.add_weight_sets() = StoredOf(listed);
  return response;
}

}  // namespace attnd::server
