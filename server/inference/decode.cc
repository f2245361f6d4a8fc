#include "server/inference/decode.h"

#include <google/protobuf/reflection.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/problem_checks.h"
#include "server/receive.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"

namespace attnd::server {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using inference::InferParameter;
using inference::InferTensorContents;
using inference::ModelInferRequest;
using InputTensorMessage = ModelInferRequest::InferInputTensor;
using ParameterMap = google::protobuf::Map<std::string, InferParameter>;

constexpr std::size_t kNameBytesMax = 64;  // of what came, in an error

std::string In(absl::string_view list, absl::string_view name) {
  return absl::StrCat(list, "[\"", absl::CEscape(name.substr(0, kNameBytesMax)), "\"]");
}

// What stock clients add by themselves, and what means nothing here.
bool IsIgnored(absl::string_view parameter) {
  for (const char* ignored : {"sequence_id", "sequence_start", "sequence_end", "binary_data_output", "headers"}) {
    if (parameter == ignored) return true;
  }
  return absl::StartsWith(parameter, "triton_");
}

absl::Status NoParameters(absl::string_view where, const ParameterMap& parameters) {
  for (const auto& [name, value] : parameters) {
    if (!IsIgnored(name)) return Refuse(absl::StrCat(where, ".", In("parameters", name)), "unknown, expected none");
  }
  return absl::OkStatus();
}

// The message that holds the field, made where it was not there.
Message& Holder(v1::AttendRequest& native, const Field& field) {
  Message* message = &native;
  for (std::size_t i = 0; i + 1 < field.steps.size(); ++i) {
    message = message->GetReflection()->MutableMessage(message, field.steps[i]);
  }
  return *message;
}

v1::Tensor& TensorAt(const Field& field, v1::AttendRequest& native) {
  Message& holder = Holder(native, field);
  return static_cast<v1::Tensor&>(*holder.GetReflection()->MutableMessage(&holder, field.steps.back()));
}

std::string FieldNames(ModelKind model, bool inputs) {
  std::vector<absl::string_view> names;
  for (const Field& field : Fields()) {
    if (field.is_input == inputs && Takes(model, field)) names.push_back(field.name);
  }
  return absl::StrJoin(names, ", ");
}

// ---- parameters ----

absl::string_view KindOf(const InferParameter& value) {
  if (value.parameter_choice_case() == InferParameter::PARAMETER_CHOICE_NOT_SET) return "no value";
  const auto* const field = InferParameter::descriptor()->FindFieldByNumber(value.parameter_choice_case());
  return field->name();
}

std::optional<std::int64_t> IntegerOf(const InferParameter& value) {
  if (value.parameter_choice_case() == InferParameter::kInt64Param) return value.int64_param();
  if (value.parameter_choice_case() == InferParameter::kUint64Param &&
      value.uint64_param() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return static_cast<std::int64_t>(value.uint64_param());
  }
  return std::nullopt;
}

std::optional<double> NumberOf(const InferParameter& value) {
  if (value.parameter_choice_case() == InferParameter::kDoubleParam) return value.double_param();
  if (const std::optional<std::int64_t> integer = IntegerOf(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

// "LAYOUT_BNHD" or "bnhd"; null without.
const EnumValueDescriptor* FindValue(const EnumDescriptor& type, absl::string_view text) {
  const std::string upper = absl::AsciiStrToUpper(text);
  const absl::string_view prefix = absl::StripSuffix(type.value(0)->name(), "UNSPECIFIED");
  const EnumValueDescriptor* found = type.FindValueByName(upper);
  return found != nullptr ? found : type.FindValueByName(absl::StrCat(prefix, upper));
}

absl::Status SetEnum(Message& holder, const FieldDescriptor& field, absl::string_view where, absl::string_view text) {
  const EnumValueDescriptor* value = FindValue(*field.enum_type(), text);
  if (const std::optional<DType> dtype = FindDataType(text);
      dtype.has_value() && field.enum_type() == v1::DataType_descriptor()) {
    value = field.enum_type()->FindValueByNumber(ToWire(*dtype));
  }
  if (value == nullptr) {
    return Refuse(where, "\"", absl::CEscape(text.substr(0, kNameBytesMax)), "\", expected one of ",
                  field.enum_type()->name(), "'s values");
  }
  holder.GetReflection()->SetEnum(&holder, &field, value);
  return absl::OkStatus();
}

// By number as stock clients mean it: 0 is no wish, 1 comes first, higher ones later.
v1::Priority PriorityOf(std::int64_t number) {
  if (number == 0) return v1::PRIORITY_UNSPECIFIED;
  if (number == 1) return v1::PRIORITY_HIGH;
  return number == 2 ? v1::PRIORITY_NORMAL : v1::PRIORITY_LOW;
}

absl::Status SetParameter(const Field& field, const InferParameter& value, v1::AttendRequest& native) {
  const std::string where = In("parameters", field.name);
  const FieldDescriptor& target = *field.steps.back();
  Message& holder = Holder(native, field);
  const google::protobuf::Reflection& reflection = *holder.GetReflection();
  switch (target.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (value.parameter_choice_case() != InferParameter::kBoolParam) {
        return Refuse(where, KindOf(value), ", expected bool_param");
      }
      reflection.SetBool(&holder, &target, value.bool_param());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_INT64: {
      const std::optional<std::int64_t> integer = IntegerOf(value);
      if (!integer) return Refuse(where, KindOf(value), ", expected int64_param");
      reflection.SetInt64(&holder, &target, *integer);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const std::optional<double> number = NumberOf(value);
      if (!number) return Refuse(where, KindOf(value), ", expected double_param");
      reflection.SetDouble(&holder, &target, *number);
      return absl::OkStatus();
    }
    default: break;  // enums are what is left
  }
  if (target.enum_type() == v1::Priority_descriptor()) {
    if (const std::optional<std::int64_t> number = IntegerOf(value); number.has_value() && *number >= 0) {
      native.set_priority(PriorityOf(*number));
      return absl::OkStatus();
    }
    if (value.parameter_choice_case() != InferParameter::kStringParam) {
      return Refuse(where, KindOf(value), ", expected int64_param of at least 0, or string_param");
    }
  }
  if (value.parameter_choice_case() != InferParameter::kStringParam) {
    return Refuse(where, KindOf(value), ", expected string_param");
  }
  return SetEnum(holder, target, where, value.string_param());
}

// A parameter of an input's name is the name of a stored tensor, in place of the input.
absl::Status SetName(const Field& input, const InferParameter& value, v1::AttendRequest& native) {
  const std::string where = In("parameters", input.name);
  if (input.is_list) return Refuse(where, "a list of numbers, expected among the inputs");
  if (value.parameter_choice_case() != InferParameter::kStringParam) {
    return Refuse(where, KindOf(value), ", expected string_param, the name of a stored tensor");
  }
  if (value.string_param().empty()) return Refuse(where, "\"\", expected the name of a stored tensor");
  TensorAt(input, native).set_name(value.string_param());
  return absl::OkStatus();
}

absl::Status SetParameters(const ModelInferRequest& request, const Model& model, InferProblem& problem) {
  // In one order, so that one message always gets one answer.
  const std::map<absl::string_view, const InferParameter*> sorted = [&] {
    std::map<absl::string_view, const InferParameter*> map;
    for (const auto& [name, value] : request.parameters()) map[name] = &value;
    return map;
  }();
  for (const auto& [name, value] : sorted) {
    if (IsIgnored(name)) continue;
    if (name == "timeout") {
      const std::optional<std::int64_t> us = IntegerOf(*value);
      if (!us || *us < 0) return Refuse("parameters[\"timeout\"]", "expected int64_param, microseconds of at least 0");
      if (*us > 0) problem.timeout = absl::Microseconds(*us);
      continue;
    }
    const Field* const field = FindField(model.kind, name, /*is_input=*/false);
    const Field* const input = FindField(model.kind, name, /*is_input=*/true);
    if (field == nullptr && input == nullptr) {
      return Refuse(In("parameters", name), "unknown to model ", model.name, ", expected timeout, ",
                    FieldNames(model.kind, /*inputs=*/false), ", or the name of an input that is stored");
    }
    absl::Status status =
        field != nullptr ? SetParameter(*field, *value, *problem.native) : SetName(*input, *value, *problem.native);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// ---- inputs ----

// Contents of one type, where there are no others.
template <typename T>
DataExtent AppendValues(const google::protobuf::RepeatedField<T>& values,
                        const std::shared_ptr<const ModelInferRequest>& owner, RawMessage& raw) {
  if (values.empty()) return {};
  return raw.Append(
      {owner, reinterpret_cast<const std::byte*>(values.data()), static_cast<std::int64_t>(sizeof(T)) * values.size()});
}

const char* ContentsField(absl::string_view datatype) {
  if (datatype == "BOOL") return "bool_contents";
  if (datatype == "INT32") return "int_contents";
  if (datatype == "INT64") return "int64_contents";
  if (datatype == "FP32") return "fp32_contents";
  return datatype == "FP64" ? "fp64_contents" : nullptr;
}

// Where the bytes of typed contents are, as those of raw ones.
absl::StatusOr<DataExtent> TypedExtent(const InputTensorMessage& input,
                                       const std::shared_ptr<const ModelInferRequest>& owner, RawMessage& raw) {
  const std::string where = absl::StrCat(In("inputs", input.name()), ".contents");
  const char* const expected = ContentsField(input.datatype());
  std::vector<const FieldDescriptor*> fields;
  input.contents().GetReflection()->ListFields(input.contents(), &fields);
  for (const FieldDescriptor* field : fields) {
    if (expected == nullptr) return Refuse(where, input.datatype(), " travels in raw_input_contents only");
    if (field->name() != expected)
      return Refuse(where, field->name(), ", expected ", expected, " for ", input.datatype());
  }
  const InferTensorContents& contents = input.contents();
  if (!contents.bool_contents().empty()) return AppendValues(contents.bool_contents(), owner, raw);
  if (!contents.int_contents().empty()) return AppendValues(contents.int_contents(), owner, raw);
  if (!contents.int64_contents().empty()) return AppendValues(contents.int64_contents(), owner, raw);
  if (!contents.fp32_contents().empty()) return AppendValues(contents.fp32_contents(), owner, raw);
  return AppendValues(contents.fp64_contents(), owner, raw);
}

template <typename From, typename To>
void AddValues(const RawMessage& raw, const DataExtent& data, Message& holder, const FieldDescriptor& field) {
  std::vector<From> values(static_cast<std::size_t>(data.bytes) / sizeof(From));
  raw.Read(data, reinterpret_cast<std::byte*>(values.data()));
  auto list = holder.GetReflection()->GetMutableRepeatedFieldRef<To>(&holder, &field);
  for (const From value : values) list.Add(static_cast<To>(value));
}

// A list of the native contract: a tensor of rank 1, whose values are read now.
absl::Status SetList(const Field& field, const InputTensorMessage& input, const DataExtent& data, const RawMessage& raw,
                     Reservation& held, v1::AttendRequest& native) {
  const std::string where = In("inputs", field.name);
  const bool is_float = field.dtype == DType::kFloat32;
  const bool is_int32 = !is_float && input.datatype() == "INT32";
  if (!is_int32 && input.datatype() != DataTypeName(field.dtype)) {
    return Refuse(where, "datatype \"", absl::CEscape(input.datatype().substr(0, kNameBytesMax)), "\", expected ",
                  is_float ? "FP32" : "INT64 or INT32");
  }
  const std::int64_t element_bytes = is_float || is_int32 ? 4 : 8;
  if (input.shape_size() != 1) return Refuse(where, "rank ", input.shape_size(), ", expected 1");
  if (data.bytes % element_bytes != 0 || data.bytes / element_bytes != input.shape(0)) {
    return Refuse(where, data.bytes, " bytes, expected ", element_bytes, " for each of ", input.shape(0), " of ",
                  input.datatype());
  }
  if (absl::Status status = ReserveParsed(data.bytes, held); !status.ok()) return status;
  Message& holder = Holder(native, field);
  const FieldDescriptor& target = *field.steps.back();
  if (is_float) {
    AddValues<float, float>(raw, data, holder, target);
  } else if (is_int32) {
    AddValues<std::int32_t, std::int64_t>(raw, data, holder, target);
  } else {
    AddValues<std::int64_t, std::int64_t>(raw, data, holder, target);
  }
  return absl::OkStatus();
}

absl::Status SetTensor(const Field& field, const InputTensorMessage& input, const DataExtent& data,
                       v1::AttendRequest& native) {
  const std::optional<DType> dtype = FindDataType(input.datatype());
  if (!dtype.has_value()) {
    return Refuse(In("inputs", field.name), "datatype \"", absl::CEscape(input.datatype().substr(0, kNameBytesMax)),
                  "\", expected FP32, FP16, BF16, FP64, INT64 or BOOL");
  }
  v1::Tensor& tensor = TensorAt(field, native);
  if (!tensor.name().empty()) {
    return Refuse(In("inputs", field.name), "given, and ", In("parameters", field.name),
                  " names a stored tensor, expected one of them");
  }
  tensor.set_dtype(ToWire(*dtype));
  *tensor.mutable_shape() = input.shape();
  tensor.set_data(FieldOf(data));
  return absl::OkStatus();
}

absl::Status SetInputs(const std::shared_ptr<const ModelInferRequest>& request, const Model& model, RawMessage& raw,
                       Reservation& held, v1::AttendRequest& native) {
  const int raw_count = request->raw_input_contents_size();
  if (raw_count > 0 && raw_count != request->inputs_size()) {
    return Refuse("raw_input_contents", raw_count, ", expected ", request->inputs_size(), ", one for each of inputs");
  }
  std::set<const Field*> seen;
  for (int i = 0; i < request->inputs_size(); ++i) {
    const InputTensorMessage& input = request->inputs(i);
    const std::string where = In("inputs", input.name());
    const Field* const field = FindField(model.kind, input.name(), /*is_input=*/true);
    if (field == nullptr) {
      return Refuse(where, "unknown to model ", model.name, ", expected ", FieldNames(model.kind, /*inputs=*/true));
    }
    if (!seen.insert(field).second) return Refuse(where, "twice, expected each at most once");
    if (absl::Status status = NoParameters(where, input.parameters()); !status.ok()) return status;
    DataExtent data;
    if (raw_count > 0) {
      if (input.contents().ByteSizeLong() > 0) {
        return Refuse(where, "contents, and raw_input_contents too, expected one of them for all inputs");
      }
      data = ExtentOf(request->raw_input_contents(i));
    } else {
      absl::StatusOr<DataExtent> typed = TypedExtent(input, request, raw);
      if (!typed.ok()) return typed.status();
      data = *typed;
    }
    const absl::Status status =
        field->is_list ? SetList(*field, input, data, raw, held, native) : SetTensor(*field, input, data, native);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// ---- outputs ----

absl::Status SetOutputs(const ModelInferRequest& request, InferProblem& problem) {
  for (const auto& output : request.outputs()) {
    const std::string where = In("outputs", output.name());
    const std::optional<OutputKind> kind = FindOutput(output.name());
    if (!kind.has_value()) {
      return Refuse(where, "unknown, expected one of ", OutputNames());
    }
    if (std::find(problem.replied.begin(), problem.replied.end(), *kind) != problem.replied.end()) {
      return Refuse(where, "twice, expected each at most once");
    }
    if (absl::Status status = NoParameters(where, output.parameters()); !status.ok()) return status;
    problem.replied.push_back(*kind);
    problem.native->add_outputs(ToWire(*kind));
  }
  if (problem.replied.empty()) problem.replied.push_back(OutputKind::kOutput);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InferProblem> DecodeInfer(const std::shared_ptr<const ModelInferRequest>& request, const Model& model,
                                         RawMessage& raw, Reservation& held) {
  InferProblem problem;
  absl::Status status = SetParameters(*request, model, problem);
  if (status.ok()) status = SetOutputs(*request, problem);
  if (status.ok()) status = SetInputs(request, model, raw, held, *problem.native);
  if (!status.ok()) return status;
  if (model.kind == ModelKind::kWeightSet) {
    v1::WeightSetRef& set = *problem.native->mutable_weight_set();
    set.set_name(model.name);
    std::int64_t version = 0;
    if (absl::SimpleAtoi(model.version, &version)) set.set_version(version);
  }
  return problem;
}

absl::Status CheckRequired(const Model& model, const v1::AttendRequest& native) {
  for (const Field& field : Fields()) {
    if (!IsRequired(model.kind, field)) continue;
    const Message* holder = &native;  // without what a step does not have
    for (const FieldDescriptor* const step : field.steps) {
      if (!holder->GetReflection()->HasField(*holder, step)) {
        return Refuse(In("inputs", field.name), "missing, expected by model ", model.name);
      }
      holder = &holder->GetReflection()->GetMessage(*holder, step);
    }
  }
  return absl::OkStatus();
}

}  // namespace attnd::server
