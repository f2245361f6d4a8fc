#include "server/inference/fields.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "attnd/v1/attention.pb.h"

namespace attnd::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr std::pair<DType, absl::string_view> kDataTypes[] = {{DType::kFloat32, "FP32"},  {DType::kFloat16, "FP16"},
                                                              {DType::kBFloat16, "BF16"}, {DType::kFloat64, "FP64"},
                                                              {DType::kBool, "BOOL"},     {DType::kInt64, "INT64"}};

constexpr absl::string_view kOutputPrefix = "OUTPUT_KIND_";

int RankOf(const Field& field) {
  if (field.is_list || absl::StartsWith(field.name, "b_")) return 1;
  if (field.name == "x") return 3;
  if (field.dtype == DType::kInt64 || absl::StartsWith(field.name, "w_")) return 2;  // positions, page tables; weights
  return 4;
}

DType DTypeOf(const Field& field) {
  if (field.name == "mask") return DType::kBool;
  if (field.is_list) {
    return field.steps.back()->cpp_type() == FieldDescriptor::CPPTYPE_INT64 ? DType::kInt64 : DType::kFloat32;
  }
  return field.name == "page_table" || absl::EndsWith(field.name, "_positions") ? DType::kInt64 : DType::kFloat32;
}

void AddFields(const Descriptor& type, const Field& parent, std::vector<Field>& fields) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& descriptor = *type.field(i);
    // Models are named by the request, and outputs have a list of their own.
    if (descriptor.message_type() == v1::WeightSetRef::descriptor()) continue;
    if (descriptor.enum_type() == v1::OutputKind_descriptor()) continue;
    Field field = parent;
    field.steps.push_back(&descriptor);
    field.name = descriptor.name() == "style" ? "rotary_style" : descriptor.name();
    field.path = absl::StrCat(parent.path, parent.path.empty() ? "" : ".", descriptor.name());
    if (descriptor.message_type() != nullptr && descriptor.message_type() != v1::Tensor::descriptor()) {
      AddFields(*descriptor.message_type(), field, fields);
      continue;
    }
    field.is_list = descriptor.is_repeated();
    field.is_input = field.is_list || descriptor.message_type() != nullptr;
    if (field.is_input) {
      field.dtype = DTypeOf(field);
      field.rank = RankOf(field);
    }
    fields.push_back(std::move(field));
  }
}

}  // namespace

const std::vector<Field>& Fields() {
  static const std::vector<Field>* const fields = [] {
    auto* const made = new std::vector<Field>;
    AddFields(*v1::AttendRequest::descriptor(), {}, *made);
    return made;
  }();
  return *fields;
}

bool Takes(ModelKind model, const Field& field) {
  const bool is_qkv = field.path == "q" || field.path == "k" || field.path == "v" || field.name == "page_table";
  const bool is_x = field.path == "x" || field.name == "lengths";
  const bool is_projection = absl::StartsWith(field.path, "projection.");
  switch (model) {
    case ModelKind::kAttention: return !is_x && !is_projection;
    case ModelKind::kProjectedAttention: return !is_qkv;
    case ModelKind::kWeightSet: return !is_qkv && !is_projection;
  }
  return false;
}

bool IsRequired(ModelKind model, const Field& field) {
  if (!Takes(model, field)) return false;
  return field.steps.size() == 1 ? field.is_input : field.name == "w_q" || field.name == "w_k" || field.name == "w_v";
}

const Field* FindField(ModelKind model, absl::string_view name, bool is_input) {
  for (const Field& field : Fields()) {
    if (field.name == name && field.is_input == is_input && Takes(model, field)) return &field;
  }
  return nullptr;
}

absl::string_view DataTypeName(DType dtype) {
  for (const auto& [type, name] : kDataTypes) {
    if (type == dtype) return name;
  }
  return "";
}

std::optional<DType> FindDataType(absl::string_view name) {
  for (const auto& [type, known] : kDataTypes) {
    if (known == name) return type;
  }
  return std::nullopt;
}

inference::DataType ConfigDataType(DType dtype) {
  inference::DataType type = inference::TYPE_INVALID;
  inference::DataType_Parse(absl::StrCat("TYPE_", DataTypeName(dtype)), &type);
  return type;
}

std::string OutputName(OutputKind kind) {
  const std::string& name = v1::OutputKind_Name(static_cast<v1::OutputKind>(kind));  // numbered alike
  return absl::AsciiStrToLower(absl::StripPrefix(name, kOutputPrefix));
}

std::optional<OutputKind> FindOutput(absl::string_view name) {
  for (int number = 1; number < kOutputKindCount; ++number) {
    if (OutputName(static_cast<OutputKind>(number)) == name) return static_cast<OutputKind>(number);
  }
  return std::nullopt;
}

std::string OutputNames() {
  std::string names;
  for (int number = 1; number < kOutputKindCount; ++number) {
    absl::StrAppend(&names, number > 1 ? ", " : "", OutputName(static_cast<OutputKind>(number)));
  }
  return names;
}

absl::Status InInferenceWords(const absl::Status& refusal) {
  const absl::string_view text = refusal.message();
  for (const Field& field : Fields()) {
    absl::string_view rest = text;
    if (!absl::ConsumePrefix(&rest, field.path) || rest.empty() || !absl::StrContains(":.[", rest.substr(0, 1)))
      continue;
    const bool is_input = field.is_input && !absl::ConsumePrefix(&rest, ".name");  // a name is a parameter
    absl::Status said(refusal.code(), absl::StrCat(is_input ? "inputs" : "parameters", "[\"", field.name, "\"]", rest));
    refusal.ForEachPayload(
        [&said](absl::string_view url, const absl::Cord& payload) { said.SetPayload(url, payload); });
    return said;
  }
  return refusal;
}

}  // namespace attnd::server
