#include "client/wire.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/util/field_mask_util.h>

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"

namespace attnd::client {

namespace {

// First whatever is not q, k, v or x: a server that has it all can pack keys and values while they arrive, and then
// answer rows one after another while q or x does.
constexpr absl::string_view kSendOrder[] = {"options.page_table",
                                            "options.rotary.k_positions",
                                            "options.rotary.q_positions",
                                            "options.mask",
                                            "options.bias",
                                            "projection.b_k",
                                            "projection.w_k",
                                            "projection.b_v",
                                            "projection.w_v",
                                            "projection.b_q",
                                            "projection.w_q",
                                            "projection.b_o",
                                            "projection.w_o",
                                            "k",
                                            "v",
                                            "q",
                                            "x"};

using google::protobuf::FieldDescriptor;
using google::protobuf::FieldMask;
using google::protobuf::Message;

// Adds every set field to `mask` but the data of tensors, which go to `tensors`.
void Visit(const Message& message, const std::string& path, FieldMask* mask, SplitRequest* split) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  const auto* tensor = dynamic_cast<const v1::Tensor*>(&message);
  // A message with nothing in it is still there.
  bool nothing = true;
  for (const FieldDescriptor* field : fields) {
    if (tensor != nullptr && field->number() == v1::Tensor::kDataFieldNumber) {
      split->tensors.emplace_back(path, &tensor->data());
      continue;
    }
    nothing = false;
    const std::string name = path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
    if (!field->is_repeated() && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Visit(message.GetReflection()->GetMessage(message, field), name, mask, split);
    } else {
      mask->add_paths(name);
    }
  }
  if (nothing && !path.empty() && tensor == nullptr) mask->add_paths(path);
  if (nothing && tensor != nullptr) mask->add_paths(absl::StrCat(path, ".dtype"));
}

constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

// The contents of a message's fields of that number which hold bytes; none where it is no message.
std::vector<std::string> BytesFields(const std::string& message, int number) {
  std::vector<std::string> found;
  google::protobuf::UnknownFieldSet fields;
  if (!fields.ParseFromString(message)) return found;
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::UnknownField& field = fields.field(i);
    if (field.number() == number && field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      found.push_back(field.length_delimited());
    }
  }
  return found;
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status ours(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  // google.rpc.Status { ... repeated google.protobuf.Any details = 3; }
  for (const std::string& detail : BytesFields(status.error_details(), 3)) {
    google::protobuf::Any any;
    if (any.ParseFromString(detail) && any.type_url() == kRetryInfoUrl) {
      ours.SetPayload(kRetryInfoUrl, absl::Cord(any.value()));
    }
  }
  return ours;
}

std::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  const absl::optional<absl::Cord> info = status.GetPayload(kRetryInfoUrl);
  if (!info.has_value()) return {};
  // google.rpc.RetryInfo { google.protobuf.Duration retry_delay = 1; }
  google::protobuf::Duration delay;
  for (const std::string& field : BytesFields(std::string(*info), 1)) {
    if (!delay.MergeFromString(field)) return {};
  }
  const absl::Duration wait = absl::Seconds(delay.seconds()) + absl::Nanoseconds(delay.nanos());
  if (wait < absl::ZeroDuration()) return {};
  return wait;
}

absl::Span<const absl::string_view> SendOrder() { return kSendOrder; }

SplitRequest Split(const v1::AttendRequest& request) {
  SplitRequest split;
  FieldMask mask;
  Visit(request, "", &mask, &split);
  const auto place = [](const auto& tensor) { return std::find(kSendOrder, std::end(kSendOrder), tensor.first); };
  std::sort(split.tensors.begin(), split.tensors.end(),
            [&](const auto& first, const auto& second) { return place(first) < place(second); });
  google::protobuf::util::FieldMaskUtil::MergeMessageTo(request, mask, {}, &split.header);
  return split;
}

}  // namespace attnd::client
