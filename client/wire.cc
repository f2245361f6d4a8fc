#include "client/wire.h"

#include <google/protobuf/util/field_mask_util.h>

#include "absl/strings/str_cat.h"

namespace attnd::client {

namespace {

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

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

SplitRequest Split(const v1::AttendRequest& request) {
  SplitRequest split;
  FieldMask mask;
  Visit(request, "", &mask, &split);
  google::protobuf::util::FieldMaskUtil::MergeMessageTo(request, mask, {}, &split.header);
  return split;
}

}  // namespace attnd::client
