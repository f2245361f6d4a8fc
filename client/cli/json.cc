#include "client/cli/json.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace attnd::client {

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// DATA_TYPE_FLOAT32 of enum DataType -> float32.
std::string EnumName(const google::protobuf::EnumValueDescriptor& value) {
  std::string prefix;
  for (const char c : value.type()->name()) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix.push_back('_');
    prefix.push_back(absl::ascii_toupper(static_cast<unsigned char>(c)));
  }
  prefix.push_back('_');
  const absl::string_view name = value.name();
  return absl::AsciiStrToLower(absl::StartsWith(name, prefix) ? name.substr(prefix.size()) : name);
}

// One value: element `index` of a repeated field, or the field itself when index is -1.
nlohmann::ordered_json Value(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r.GetInt32(message, field) : r.GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r.GetInt64(message, field) : r.GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r.GetUInt32(message, field) : r.GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r.GetUInt64(message, field) : r.GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r.GetDouble(message, field) : r.GetRepeatedDouble(message, field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? r.GetFloat(message, field) : r.GetRepeatedFloat(message, field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r.GetBool(message, field) : r.GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? r.GetString(message, field) : r.GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumName(one ? *r.GetEnum(message, field) : *r.GetRepeatedEnum(message, field, index));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(one ? r.GetMessage(message, field) : r.GetRepeatedMessage(message, field, index));
  }
  return nullptr;
}

}  // namespace

nlohmann::ordered_json ToJson(const Message& message) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (int f = 0; f < message.GetDescriptor()->field_count(); ++f) {
    const FieldDescriptor* field = message.GetDescriptor()->field(f);
    if (field->type() == FieldDescriptor::TYPE_BYTES) continue;
    if (field->is_repeated()) {
      nlohmann::ordered_json list = nlohmann::ordered_json::array();
      for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i)
        list.push_back(Value(message, field, i));
      json[field->name()] = std::move(list);
    } else if (!field->has_presence() || message.GetReflection()->HasField(message, field)) {
      json[field->name()] = Value(message, field, -1);
    }
  }
  return json;
}

}  // namespace attnd::client
