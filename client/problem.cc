#include "client/problem.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace attnd::client {

namespace {

std::vector<std::int64_t> Shape(const v1::Tensor& tensor) { return {tensor.shape().begin(), tensor.shape().end()}; }

// The tensors that stand in the message itself, by their paths.
std::vector<std::pair<std::string, v1::Tensor*>> TensorsOf(google::protobuf::Message* message,
                                                           absl::string_view prefix) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  std::vector<std::pair<std::string, v1::Tensor*>> tensors;
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->message_type() != v1::Tensor::descriptor()) continue;
    tensors.emplace_back(absl::StrCat(prefix, field->name()),
                         dynamic_cast<v1::Tensor*>(reflection.MutableMessage(message, field)));
  }
  return tensors;
}

}  // namespace

// B, Hq, Hkv, Nq, Nk, d_k, d_v of a request; d_out is 0 without w_o.
struct Problem::Sizes {
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, q_rows = 0, kv_rows = 0, d_k = 0, d_v = 0, d_out = 0;
};

v1::Tensor ToTensor(Array array) {
  v1::Tensor tensor;
  tensor.set_dtype(static_cast<v1::DataType>(array.dtype));
  tensor.mutable_shape()->Assign(array.shape.begin(), array.shape.end());
  *tensor.mutable_data() = std::move(array.bytes);
  return tensor;
}

absl::StatusOr<Array> ToArrayHead(const v1::Tensor& tensor, std::int64_t bytes) {
  Array array{static_cast<DType>(tensor.dtype()), Shape(tensor), {}};
  if (tensor.dtype() < v1::DATA_TYPE_FLOAT32 || tensor.dtype() > v1::DATA_TYPE_INT64) {
    return absl::InternalError(
        absl::StrCat("the server answered in dtype ", tensor.dtype(), ", which this client does not know"));
  }
  const absl::StatusOr<std::int64_t> expected = ByteCount(array.dtype, array.shape);
  if (!expected.ok() || *expected != bytes) {
    return absl::InternalError(
        absl::StrCat("the server answered ", bytes, " bytes for ", Name(array.dtype), " ", ShapeText(array.shape)));
  }
  return array;
}

absl::StatusOr<Array> ToArray(v1::Tensor tensor) {
  absl::StatusOr<Array> array = ToArrayHead(tensor, static_cast<std::int64_t>(tensor.data().size()));
  if (array.ok()) array->bytes = std::move(*tensor.mutable_data());
  return array;
}

std::string Name(v1::OutputKind kind) {
  const std::string name = v1::OutputKind_Name(kind);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "OUTPUT_KIND_"));
}

absl::StatusOr<Problem> Problem::FromQkv(Array q, Array k, Array v, v1::Layout layout) {
  const std::size_t rank = q.shape.size();
  const bool bnhd = layout == v1::LAYOUT_BNHD;
  Problem problem;
  if (rank == 2) problem.dropped_ = "BH";
  if (rank == 3) problem.dropped_ = "H";
  const std::pair<const char*, Array*> fields[] = {{"q", &q}, {"k", &k}, {"v", &v}};
  for (const auto& [name, array] : fields) {
    std::vector<std::int64_t>& shape = array->shape;
    if (shape.size() < 2 || shape.size() > 4 || shape.size() != rank) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": shape ", ShapeText(shape), ", expected ",
                                                     rank < 2 || rank > 4
                                                         ? std::string("rank 2 [N,d], 3 [B,N,d] or 4 [B,H,N,d]")
                                                         : absl::StrCat("rank ", rank, " as in q")));
    }
    if (rank == 2) shape.insert(shape.begin(), 1);
    if (rank < 4) shape.insert(shape.begin() + (bnhd ? 2 : 1), 1);
  }
  *problem.request_->mutable_q() = ToTensor(std::move(q));
  *problem.request_->mutable_k() = ToTensor(std::move(k));
  *problem.request_->mutable_v() = ToTensor(std::move(v));
  problem.options().set_layout(layout);
  return problem;
}

absl::StatusOr<Problem> Problem::FromX(Array x, v1::Projection projection) {
  Problem problem;
  if (x.shape.size() != 2 && x.shape.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("x: shape ", ShapeText(x.shape), ", expected rank 2 [N,d_model] or 3 [B,N,d_model]"));
  }
  if (x.shape.size() == 2) {
    problem.dropped_ = "B";
    x.shape.insert(x.shape.begin(), 1);
  }
  *problem.request_->mutable_x() = ToTensor(std::move(x));
  *problem.request_->mutable_projection() = std::move(projection);
  return problem;
}

const v1::Tensor* Problem::Find(const std::string& path) const {
  const auto stored = stored_.find(path);
  if (stored != stored_.end()) return &stored->second;
  const google::protobuf::Message* message = request_.get();
  for (const absl::string_view part : absl::StrSplit(path, '.')) {
    const google::protobuf::Reflection& reflection = *message->GetReflection();
    const auto* field = message->GetDescriptor()->FindFieldByName(std::string(part));
    if (stored_projection_ && message == request_.get() && part == "projection") {
      message = &*stored_projection_;
      continue;
    }
    if (field == nullptr || field->is_repeated() || field->message_type() == nullptr ||
        !reflection.HasField(*message, field)) {
      return nullptr;
    }
    message = &reflection.GetMessage(*message, field);
  }
  return dynamic_cast<const v1::Tensor*>(message);
}

std::vector<std::int64_t> Problem::ShapeOf(const std::string& path) const {
  const v1::Tensor* tensor = Find(path);
  return tensor == nullptr ? std::vector<std::int64_t>() : Shape(*tensor);
}

absl::Status Problem::UseStored(const std::string& path, const std::string& name) {
  const v1::Tensor* given = Find(path);
  if (given == nullptr || stored_projection_) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": nothing was given for it that could have a name"));
  }
  v1::Tensor head;
  head.set_dtype(given->dtype());
  *head.mutable_shape() = given->shape();
  google::protobuf::Message* message = &Mutable();
  for (const absl::string_view part : absl::StrSplit(path, '.')) {
    message =
        message->GetReflection()->MutableMessage(message, message->GetDescriptor()->FindFieldByName(std::string(part)));
  }
  message->Clear();
  dynamic_cast<v1::Tensor&>(*message).set_name(name);
  stored_[path] = std::move(head);
  return absl::OkStatus();
}

void Problem::UseWeightSet(const std::string& name, std::int64_t version) {
  stored_projection_ = std::move(*Mutable().mutable_projection());
  request_->clear_projection();
  request_->mutable_weight_set()->set_name(name);
  request_->mutable_weight_set()->set_version(version);
}

absl::StatusOr<Problem::Sizes> Problem::SizesOf() const {
  Sizes sizes;
  if (request_->has_x()) {
    const v1::Projection& projection = stored_projection_ ? *stored_projection_ : request_->projection();
    const std::vector<std::int64_t> x = ShapeOf("x");
    const auto columns = [&](const char* weight) -> std::int64_t {
      const std::vector<std::int64_t> shape = ShapeOf(weight);
      return shape.size() == 2 ? shape[projection.weights_transposed() ? 0 : 1] : 0;
    };
    if (x.size() != 3 || projection.q_heads() < 1 || projection.kv_heads() < 1) {
      return absl::InvalidArgumentError("x or projection has no usable shape");
    }
    sizes.batch = x[0];
    sizes.q_rows = sizes.kv_rows = x[1];
    sizes.q_heads = projection.q_heads();
    sizes.kv_heads = projection.kv_heads();
    sizes.d_k = columns("projection.w_q") / sizes.q_heads;
    sizes.d_v = columns("projection.w_v") / sizes.kv_heads;
    if (projection.has_w_o()) sizes.d_out = columns("projection.w_o");
    return sizes;
  }
  const std::vector<std::int64_t> q = ShapeOf("q"), k = ShapeOf("k"), v = ShapeOf("v");
  if (q.size() != 4 || k.size() != 4 || v.size() != 4) {
    return absl::InvalidArgumentError("q, k and v are not of rank 4");
  }
  const bool bnhd = request_->options().layout() == v1::LAYOUT_BNHD;
  const std::size_t heads = bnhd ? 2 : 1, rows = bnhd ? 1 : 2;
  sizes.batch = q[0];
  sizes.q_heads = q[heads];
  sizes.q_rows = q[rows];
  sizes.d_k = q[3];
  sizes.kv_heads = k[heads];
  sizes.kv_rows = k[rows];
  sizes.d_v = v[3];
  if (request_->options().has_page_table()) {
    const std::vector<std::int64_t> table = ShapeOf("options.page_table");
    if (table.size() != 2) return absl::InvalidArgumentError("page_table is not of rank 2");
    const absl::StatusOr<std::int64_t> keys = ElementCount({table[1], sizes.kv_rows});
    if (!keys.ok()) return keys.status();
    sizes.kv_rows = *keys;
  }
  return sizes;
}

Array Problem::WithHeadDimension(Array broadcast) const {
  if (dropped_ == "H" && broadcast.shape.size() == 3) broadcast.shape.insert(broadcast.shape.begin() + 1, 1);
  return broadcast;
}

v1::AttendRequest& Problem::Mutable() {
  if (request_.use_count() > 1) request_ = std::make_shared<v1::AttendRequest>(*request_);
  // Whoever held it until now has read it before we write.
  std::atomic_thread_fence(std::memory_order_acquire);
  return *request_;
}

void Problem::SetMask(Array mask) { *options().mutable_mask() = ToTensor(WithHeadDimension(std::move(mask))); }
void Problem::SetBias(Array bias) { *options().mutable_bias() = ToTensor(WithHeadDimension(std::move(bias))); }

void Problem::Want(v1::OutputKind kind) {
  if (kind != v1::OUTPUT_KIND_OUTPUT && !Wants(kind)) Mutable().add_outputs(kind);
}

bool Problem::Wants(v1::OutputKind kind) const {
  return kind == v1::OUTPUT_KIND_OUTPUT || std::count(request_->outputs().begin(), request_->outputs().end(), kind) > 0;
}

absl::Status Problem::SetWireDType(DType dtype) {
  v1::AttendRequest& request = Mutable();
  const auto before = static_cast<DType>(Find(request.has_x() ? "x" : "q")->dtype());
  std::vector<std::pair<std::string, v1::Tensor*>> tensors = TensorsOf(&request, "");
  if (request.has_projection()) {
    for (auto& weight : TensorsOf(request.mutable_projection(), "projection.")) tensors.push_back(weight);
  }
  for (const auto& [path, tensor] : tensors) {
    if (!tensor->name().empty()) continue;  // stays as it is stored
    Array array{static_cast<DType>(tensor->dtype()), Shape(*tensor), std::move(*tensor->mutable_data())};
    absl::StatusOr<Array> converted = Convert(std::move(array), dtype);
    if (!converted.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", converted.status().message()));
    *tensor = ToTensor(*std::move(converted));
  }
  if (!callers_dtype_) callers_dtype_ = before;
  return absl::OkStatus();
}

DType Problem::output_dtype() const {
  const v1::DataType asked = request_->options().output_dtype();
  if (asked != 0) return static_cast<DType>(asked);
  const v1::Tensor* from = Find(request_->has_x() ? "x" : "q");
  return static_cast<DType>(from == nullptr ? 0 : from->dtype());
}

DType Problem::AnswerDType(v1::OutputKind kind, DType sent) const {
  const bool widened = kind == v1::OUTPUT_KIND_OUTPUT && callers_dtype_ && request_->options().output_dtype() == 0 &&
                       ElementBytes(*callers_dtype_) > ElementBytes(sent);
  return widened ? *callers_dtype_ : sent;
}

std::int64_t Problem::request_bytes() const {
  const v1::Projection& p = request_->projection();
  const v1::Options& o = request_->options();
  std::int64_t bytes = 0;
  for (const v1::Tensor* tensor : {&request_->q(), &request_->k(), &request_->v(), &request_->x(), &p.w_q(), &p.w_k(),
                                   &p.w_v(), &p.b_q(), &p.b_k(), &p.b_v(), &p.w_o(), &p.b_o(), &o.mask(), &o.bias(),
                                   &o.rotary().q_positions(), &o.rotary().k_positions(), &o.page_table()}) {
    bytes += static_cast<std::int64_t>(tensor->data().size());
  }
  return bytes;
}

absl::StatusOr<std::int64_t> Problem::reply_bytes() const {
  std::int64_t bytes = 0;
  std::vector<v1::OutputKind> kinds = {v1::OUTPUT_KIND_OUTPUT};
  for (const int kind : request_->outputs()) kinds.push_back(static_cast<v1::OutputKind>(kind));
  for (const v1::OutputKind kind : kinds) {
    const absl::StatusOr<OutputLayout> layout = LayoutOf(kind);
    if (!layout.ok()) return layout.status();
    std::int64_t of_kind = 0;
    const std::int64_t element = kind == v1::OUTPUT_KIND_OUTPUT ? ElementBytes(output_dtype()) : 4;
    if (__builtin_mul_overflow(layout->elements, element, &of_kind) || __builtin_add_overflow(bytes, of_kind, &bytes)) {
      return absl::InvalidArgumentError("the answer has more bytes than fit int64");
    }
  }
  return bytes;
}

absl::string_view Problem::Dimensions(v1::OutputKind kind) const {
  if (kind == v1::OUTPUT_KIND_LSE) return "BHN";
  if (kind != v1::OUTPUT_KIND_OUTPUT) return "BHNC";
  if ((stored_projection_ ? *stored_projection_ : request_->projection()).has_w_o()) return "BNC";
  return request_->options().layout() == v1::LAYOUT_BNHD ? "BNHC" : "BHNC";
}

absl::StatusOr<OutputLayout> Problem::LayoutOf(v1::OutputKind kind) const {
  const absl::StatusOr<Sizes> sizes = SizesOf();
  if (!sizes.ok()) return sizes.status();
  OutputLayout layout;
  layout.batch = sizes->batch;
  layout.heads = sizes->q_heads;
  layout.rows = sizes->q_rows;
  layout.columns = sizes->kv_rows;
  if (kind == v1::OUTPUT_KIND_LSE) layout.columns = 1;
  if (kind == v1::OUTPUT_KIND_OUTPUT) layout.columns = sizes->d_v;
  if (kind == v1::OUTPUT_KIND_PROJECTED_Q) layout.columns = sizes->d_k;
  if (kind == v1::OUTPUT_KIND_PROJECTED_K || kind == v1::OUTPUT_KIND_PROJECTED_V) {
    layout.heads = sizes->kv_heads;
    layout.rows = sizes->kv_rows;
    layout.columns = kind == v1::OUTPUT_KIND_PROJECTED_K ? sizes->d_k : sizes->d_v;
  }
  if (kind == v1::OUTPUT_KIND_OUTPUT && Dimensions(kind) == "BNC") {
    layout.heads = 1;
    layout.columns = sizes->d_out;
  }
  const absl::string_view dimensions = Dimensions(kind);
  std::vector<std::int64_t> shape;
  for (const char letter : dimensions) {
    shape.push_back(letter == 'B'   ? layout.batch
                    : letter == 'H' ? layout.heads
                    : letter == 'N' ? layout.rows
                                    : layout.columns);
  }
  const absl::StatusOr<std::int64_t> elements = ElementCount(shape);
  if (!elements.ok()) return elements.status();
  layout.elements = *elements;
  if (layout.elements != 0) {  // strides of an empty tensor are never used, and might overflow
    std::int64_t step = 1;
    for (std::size_t d = shape.size(); d-- > 0; step *= shape[d]) {
      if (dimensions[d] == 'B') layout.batch_stride = step;
      if (dimensions[d] == 'H') layout.head_stride = step;
      if (dimensions[d] == 'N') layout.row_stride = step;
    }
  }
  absl::StatusOr<std::vector<std::int64_t>> callers = InCallersRank(kind, shape);
  if (!callers.ok()) return callers.status();
  layout.shape = *std::move(callers);
  return layout;
}

absl::StatusOr<std::vector<std::int64_t>> Problem::InCallersRank(v1::OutputKind kind,
                                                                 const std::vector<std::int64_t>& shape) const {
  const absl::string_view dimensions = Dimensions(kind);
  if (shape.size() != dimensions.size()) {
    return absl::InternalError(absl::StrCat("the server answered ", Name(kind), " of shape ", ShapeText(shape),
                                            ", expected rank ", dimensions.size()));
  }
  std::vector<std::int64_t> kept;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    // One head of x's projection is kept: only dimensions that the caller's arrays lacked are dropped.
    if (dropped_.find(dimensions[d]) == std::string::npos) kept.push_back(shape[d]);
  }
  return kept;
}

}  // namespace attnd::client
