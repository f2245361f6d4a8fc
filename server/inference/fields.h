// What the Open Inference Protocol calls the fields of the native contract, and which of its models take them. Tensors
// and lists of AttendRequest are inputs, single values are parameters, each under its field's own name; the name of a
// stored tensor is a parameter under the name of the input that it stands for. Thread rule: constants and pure
// functions.
#pragma once

#include <google/protobuf/descriptor.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/tensor.h"
#include "inference/inference.pb.h"

namespace attnd::server {

enum class ModelKind {
  kAttention,           // q, k, v
  kProjectedAttention,  // x and weights
  kWeightSet,           // x, with weights that the server has
};

struct Field {
  std::string name;                                             // "kv_len"
  std::string path;                                             // of the native contract: "options.kv_len"
  std::vector<const google::protobuf::FieldDescriptor*> steps;  // from AttendRequest to it
  bool is_input = false;                                        // else a parameter
  bool is_list = false;                                         // of numbers in the native contract
  DType dtype = DType::kFloat32;                                // of an input, as metadata has it
  int rank = 0;                                                 // of an input, the highest
};

const std::vector<Field>& Fields();

bool Takes(ModelKind model, const Field& field);
bool IsRequired(ModelKind model, const Field& field);
// Among those that the model takes; null without.
const Field* FindField(ModelKind model, absl::string_view name, bool is_input);

// "FP32", ...
absl::string_view DataTypeName(DType dtype);
std::optional<DType> FindDataType(absl::string_view name);
inference::DataType ConfigDataType(DType dtype);

// "output", "weights", "lse", ...
std::string OutputName(OutputKind kind);
std::optional<OutputKind> FindOutput(absl::string_view name);
// "output, weights, ...": every kind that there is.
std::string OutputNames();

// `refusal` with inputs["kv_len"] where it begins with options.kv_len, and so on for every field.
absl::Status InInferenceWords(const absl::Status& refusal);

}  // namespace attnd::server
