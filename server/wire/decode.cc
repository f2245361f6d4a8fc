#include "server/wire/decode.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/checked.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kRankMax = 8;  // nothing has more than 4; keeps an error's text short

// A tensor without elements still needs an address.
alignas(64) constexpr std::byte kNoBytes[64] = {};

absl::Status UnknownFields(const Message& message, absl::string_view path) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  if (unknown.field_count() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path.empty() ? message.GetDescriptor()->name() : path,
                                                 ": unknown field ", unknown.field(0).number()));
}

// Looks at every field that is there; a path becomes text only for an error.
class KnownCheck {
 public:
  absl::Status At(const Message& message) {
    const Reflection& reflection = *message.GetReflection();
    if (reflection.GetUnknownFields(message).field_count() != 0) return UnknownFields(message, PathText());
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      path_.push_back(field);
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
        if (absl::Status status = Enum(message, *field); !status.ok()) return status;
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
        for (int i = 0; i < count; ++i) {
          const Message& child = field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                      : reflection.GetMessage(message, field);
          if (absl::Status status = At(child); !status.ok()) return status;
        }
      }
      path_.pop_back();
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Enum(const Message& message, const FieldDescriptor& field) {
    const Reflection& reflection = *message.GetReflection();
    const EnumDescriptor& type = *field.enum_type();
    const int count = field.is_repeated() ? reflection.FieldSize(message, &field) : 1;
    for (int i = 0; i < count; ++i) {
      const int number = field.is_repeated() ? reflection.GetRepeatedEnumValue(message, &field, i)
                                             : reflection.GetEnumValue(message, &field);
      if (type.FindValueByNumber(number) == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(PathText(), field.is_repeated() ? absl::StrCat("[", i, "]") : "",
                                                       ": unknown value ", number, " of ", type.name()));
      }
    }
    return absl::OkStatus();
  }

  std::string PathText() const {
    return absl::StrJoin(path_, ".", [](std::string* out, const FieldDescriptor* field) { *out += field->name(); });
  }

  std::vector<const FieldDescriptor*> path_;
};

std::optional<DType> FromWire(v1::DataType dtype) {
  switch (dtype) {
    case v1::DATA_TYPE_FLOAT32: return DType::kFloat32;
    case v1::DATA_TYPE_FLOAT16: return DType::kFloat16;
    case v1::DATA_TYPE_BFLOAT16: return DType::kBFloat16;
    case v1::DATA_TYPE_FLOAT64: return DType::kFloat64;
    case v1::DATA_TYPE_BOOL: return DType::kBool;
    case v1::DATA_TYPE_INT64: return DType::kInt64;
    default: return std::nullopt;
  }
}

// Decodes fields until one is wrong; `status` is the first thing that was.
struct Decoder {
  DataRule rule;
  Names* names;
  absl::Status status;
  std::vector<TensorExtent> came{};
  Held held{};

  void Fail(absl::string_view text) {
    if (status.ok()) status = absl::InvalidArgumentError(text);
  }

  std::optional<InputTensor> Tensor(bool present, const v1::Tensor& tensor, absl::string_view path) {
    if (!present || !status.ok()) return std::nullopt;
    if (!tensor.name().empty()) return Named(tensor, path);
    const std::optional<DType> dtype = FromWire(tensor.dtype());
    if (!dtype.has_value()) {
      Fail(absl::StrCat(path, ".dtype: absent, expected one of DataType's values"));
      return std::nullopt;
    }
    if (tensor.shape_size() > kRankMax) {
      Fail(absl::StrCat(path, ": rank ", tensor.shape_size(), ", expected at most 4"));
      return std::nullopt;
    }
    InputTensor result;
    result.dtype = *dtype;
    result.shape.assign(tensor.shape().begin(), tensor.shape().end());
    SetData(ExtentOf(tensor.data()), path, result);
    return result;
  }

  std::optional<InputTensor> Named(const v1::Tensor& tensor, absl::string_view path) {
    if (tensor.dtype() != v1::DATA_TYPE_UNSPECIFIED || tensor.shape_size() > 0 || !tensor.data().empty()) {
      Fail(absl::StrCat(path, ": dtype, shape or data beside a name, expected either"));
      return std::nullopt;
    }
    absl::StatusOr<InputTensor> found = absl::NotFoundError("this server keeps no tensors");
    if (names != nullptr) found = names->Tensor(tensor.name(), held);
    if (!found.ok()) {
      status = AtField(absl::StrCat(path, ".name"), found.status());
      return std::nullopt;
    }
    if (!found->room.empty() && path != "q" && path != "k" && path != "v") {
      Fail(absl::StrCat(path, ".name: of a tensor with room for more rows, expected for q, k and v only"));
      return std::nullopt;
    }
    if (found->data == nullptr) found->data = kNoBytes;
    return *std::move(found);
  }

  void SetData(DataExtent data, absl::string_view path, InputTensor& tensor) {
    for (const std::int64_t size : tensor.shape) {
      if (size < 0)
        return Fail(absl::StrCat(path, ": shape ", ShapeText(tensor.shape), ", expected sizes of at least 0"));
    }
    std::vector<std::int64_t> factors = tensor.shape;
    factors.push_back(ElementBytes(tensor.dtype));
    const std::optional<std::int64_t> bytes = CheckedProduct(factors);
    if (!bytes.has_value()) {
      return Fail(absl::StrCat(path, ": shape ", ShapeText(tensor.shape), " of ", std::string(Name(tensor.dtype)),
                               " is more bytes than a 64-bit integer counts"));
    }
    if (rule == DataRule::kNone) {
      if (data.bytes != 0)
        Fail(absl::StrCat(path, ".data: ", data.bytes, " bytes, expected none: Plan takes shapes only"));
      return;
    }
    if (rule == DataRule::kWholeOrLater && data.bytes == 0 && *bytes > 0) return;
    if (data.bytes != *bytes) {
      return Fail(absl::StrCat(path, ": ", data.bytes, " bytes, expected ", *bytes, " for ",
                               std::string(Name(tensor.dtype)), " ", ShapeText(tensor.shape)));
    }
    if (data.bytes == 0) {
      tensor.data = kNoBytes;
    } else {
      came.push_back({path, data});
    }
  }

  ProjectionInputs Projection(const v1::Projection& from) {
    ProjectionInputs to;
    to.q_heads = from.q_heads();
    to.kv_heads = from.kv_heads();
    to.weights_transposed = from.weights_transposed();
    to.w_q = Tensor(from.has_w_q(), from.w_q(), "projection.w_q");
    to.w_k = Tensor(from.has_w_k(), from.w_k(), "projection.w_k");
    to.w_v = Tensor(from.has_w_v(), from.w_v(), "projection.w_v");
    to.b_q = Tensor(from.has_b_q(), from.b_q(), "projection.b_q");
    to.b_k = Tensor(from.has_b_k(), from.b_k(), "projection.b_k");
    to.b_v = Tensor(from.has_b_v(), from.b_v(), "projection.b_v");
    to.w_o = Tensor(from.has_w_o(), from.w_o(), "projection.w_o");
    to.b_o = Tensor(from.has_b_o(), from.b_o(), "projection.b_o");
    return to;
  }

  RotaryInputs Rotary(const v1::Rotary& from) {
    RotaryInputs to;
    if (from.style() == v1::ROTARY_STYLE_UNSPECIFIED) {
      Fail("options.rotary.style: absent, expected ROTARY_STYLE_HALF or ROTARY_STYLE_INTERLEAVED");
    }
    to.style = from.style() == v1::ROTARY_STYLE_INTERLEAVED ? RotaryStyle::kInterleaved : RotaryStyle::kHalf;
    to.rotary_dim = from.rotary_dim();
    if (from.has_rope_base()) to.rope_base = from.rope_base();
    to.q_positions = Tensor(from.has_q_positions(), from.q_positions(), "options.rotary.q_positions");
    to.k_positions = Tensor(from.has_k_positions(), from.k_positions(), "options.rotary.k_positions");
    return to;
  }

  OptionInputs Options(const v1::Options& from) {
    OptionInputs to;
    if (from.has_scale()) to.scale = from.scale();
    to.causal = from.causal();
    if (from.has_window_left()) to.window_left = from.window_left();
    if (from.has_window_right()) to.window_right = from.window_right();
    to.q_offset.assign(from.q_offset().begin(), from.q_offset().end());
    to.q_len.assign(from.q_len().begin(), from.q_len().end());
    to.kv_len.assign(from.kv_len().begin(), from.kv_len().end());
    to.lengths.assign(from.lengths().begin(), from.lengths().end());
    to.mask = Tensor(from.has_mask(), from.mask(), "options.mask");
    to.bias = Tensor(from.has_bias(), from.bias(), "options.bias");
    if (from.has_softcap()) to.softcap = from.softcap();
    to.alibi_slopes.assign(from.alibi_slopes().begin(), from.alibi_slopes().end());
    to.sinks.assign(from.sinks().begin(), from.sinks().end());
    if (from.has_rotary()) to.rotary = Rotary(from.rotary());
    to.layout = from.layout() == v1::LAYOUT_BNHD ? Layout::kBNHD : Layout::kBHND;
    to.output_dtype = FromWire(from.output_dtype());
    to.reference = from.mode() == v1::COMPUTE_MODE_REFERENCE;
    to.page_table = Tensor(from.has_page_table(), from.page_table(), "options.page_table");
    return to;
  }
};

void Visit(absl::string_view path, std::optional<InputTensor>& tensor,
           absl::FunctionRef<void(absl::string_view, InputTensor&)> visit) {
  if (tensor.has_value()) visit(path, *tensor);
}

}  // namespace

absl::Status CheckKnown(const Message& message) { return KnownCheck().At(message); }

absl::Status CheckKnownFields(const Message& message) { return UnknownFields(message, ""); }

StreamMessagePeek PeekStreamMessage(const grpc::ByteBuffer& buffer) {
  StreamMessagePeek peek;
  grpc::ByteBuffer copy = buffer;  // a reference to the same slices
  if (copy.Length() == 0) return peek;
  grpc::ProtoBufferReader reader(&copy);
  google::protobuf::io::CodedInputStream input(&reader);
  std::uint32_t tag = input.ReadTag();
  if (tag == (v1::AttendStreamRequest::kProblemIdFieldNumber << 3)) {
    if (!input.ReadVarint64(&peek.problem_id)) return peek;
    tag = input.ReadTag();
  }
  peek.is_header = tag == (v1::AttendStreamRequest::kHeaderFieldNumber << 3 | 2);
  return peek;
}

absl::StatusOr<InputTensor> DecodeTensor(const v1::Tensor& tensor, absl::string_view path, DataRule rule) {
  Decoder decoder{rule, nullptr, absl::OkStatus()};
  std::optional<InputTensor> decoded = decoder.Tensor(true, tensor, path);
  if (!decoder.status.ok()) return decoder.status;
  return *std::move(decoded);
}

absl::StatusOr<DecodedProblem> DecodeProblem(const v1::AttendRequest& request, DataRule rule, Names* names) {
  Decoder decoder{rule, names, CheckKnown(request)};
  if (!decoder.status.ok()) return decoder.status;
  ProblemInputs inputs;
  inputs.q = decoder.Tensor(request.has_q(), request.q(), "q");
  inputs.k = decoder.Tensor(request.has_k(), request.k(), "k");
  inputs.v = decoder.Tensor(request.has_v(), request.v(), "v");
  inputs.x = decoder.Tensor(request.has_x(), request.x(), "x");
  if (request.has_projection()) inputs.projection = decoder.Projection(request.projection());
  inputs.options = decoder.Options(request.options());
  for (int i = 0; i < request.outputs_size(); ++i) {
    if (request.outputs(i) == v1::OUTPUT_KIND_UNSPECIFIED) {
      decoder.Fail(absl::StrCat("outputs[", i, "]: unspecified, expected one of OutputKind's values"));
    }
    if (i >= kOutputKindCount) decoder.Fail(absl::StrCat("outputs: ", request.outputs_size(), ", expected each once"));
    if (!decoder.status.ok()) return decoder.status;
    inputs.outputs.push_back(static_cast<OutputKind>(request.outputs(i)));  // numbered alike
  }
  if (!decoder.status.ok()) return decoder.status;
  return DecodedProblem{std::move(inputs), std::move(decoder.came), std::move(decoder.held), request.priority()};
}

absl::StatusOr<DecodedWeights> DecodeWeights(const v1::PutWeightSetRequest& request, Names* names) {
  Decoder decoder{DataRule::kWhole, names, CheckKnown(request)};
  if (!request.has_projection()) decoder.Fail("projection: absent, expected the set's weights");
  if (!decoder.status.ok()) return decoder.status;
  DecodedWeights weights;
  weights.projection = decoder.Projection(request.projection());
  if (request.has_rotary()) weights.rotary = decoder.Rotary(request.rotary());
  if (!decoder.status.ok()) return decoder.status;
  weights.came = std::move(decoder.came);
  weights.held = std::move(decoder.held);
  return weights;
}

void ForEachTensor(ProblemInputs& inputs, absl::FunctionRef<void(absl::string_view, InputTensor&)> visit) {
  Visit("q", inputs.q, visit);
  Visit("k", inputs.k, visit);
  Visit("v", inputs.v, visit);
  Visit("x", inputs.x, visit);
  if (auto& projection = inputs.projection; projection.has_value()) {
    Visit("projection.w_q", projection->w_q, visit);
    Visit("projection.w_k", projection->w_k, visit);
    Visit("projection.w_v", projection->w_v, visit);
    Visit("projection.b_q", projection->b_q, visit);
    Visit("projection.b_k", projection->b_k, visit);
    Visit("projection.b_v", projection->b_v, visit);
    Visit("projection.w_o", projection->w_o, visit);
    Visit("projection.b_o", projection->b_o, visit);
  }
  Visit("options.mask", inputs.options.mask, visit);
  Visit("options.bias", inputs.options.bias, visit);
  if (auto& rotary = inputs.options.rotary; rotary.has_value()) {
    Visit("options.rotary.q_positions", rotary->q_positions, visit);
    Visit("options.rotary.k_positions", rotary->k_positions, visit);
  }
  Visit("options.page_table", inputs.options.page_table, visit);
}

std::int64_t TensorBytes(const InputTensor& tensor) {
  std::vector<std::int64_t> factors = tensor.shape;
  factors.push_back(ElementBytes(tensor.dtype));
  return CheckedProduct(factors).value_or(0);
}

std::vector<AlignedBuffer<std::byte>> CopyTensors(RawMessage& raw, const std::vector<TensorExtent>& came,
                                                  ProblemInputs& inputs) {
  std::vector<AlignedBuffer<std::byte>> buffers;
  std::vector<DataCopy> copies;
  buffers.reserve(came.size());
  copies.reserve(came.size());
  ForEachTensor(inputs, [&](absl::string_view path, InputTensor& tensor) {
    const auto found = std::find_if(came.begin(), came.end(),
                                    [path](const TensorExtent& tensor_came) { return tensor_came.path == path; });
    if (found == came.end()) return;
    buffers.emplace_back(found->extent.bytes);
    copies.push_back({found->extent, buffers.back().data()});
    tensor.data = buffers.back().data();
  });
  raw.CopyOut(std::move(copies));
  return buffers;
}

}  // namespace attnd::server
