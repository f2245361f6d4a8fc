// q, k, v or x and its projection: presence, types, shapes that agree, views.
#include "core/checked.h"
#include "core/problem_checks.h"

namespace attnd {

absl::Status CheckFloat(absl::string_view field, DType dtype, bool reference) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16: return absl::OkStatus();
    case DType::kFloat64:
      if (reference) return absl::OkStatus();
      return Refuse(field, "dtype float64 outside reference mode, expected float32, float16 or bfloat16");
    case DType::kBool:
    case DType::kInt64: break;
  }
  return Refuse(field, "dtype ", Name(dtype), ", expected float32, float16",
                reference ? ", bfloat16 or float64" : " or bfloat16");
}

absl::Status CheckSize(absl::string_view field, const InputTensor& tensor, std::int64_t& input_bytes) {
  std::int64_t bytes = ElementBytes(tensor.dtype);
  std::int64_t bound = bytes;
  for (const std::int64_t dimension : tensor.shape) {
    if (dimension < 0) return RefuseShape(field, tensor, "no negative dimension");
    const std::optional<std::int64_t> product = CheckedProduct({bound, dimension == 0 ? 1 : dimension});
    if (!product) return RefuseShape(field, tensor, "a size in bytes that fits a signed 64-bit integer");
    bound = *product;
    bytes = dimension == 0 ? 0 : bytes * dimension;
  }
  if (tensor.shared) return absl::OkStatus();
  const std::optional<std::int64_t> sum = CheckedSum({input_bytes, bytes});
  if (!sum) return RefuseShape(field, tensor, "all tensors together to fit a signed 64-bit integer of bytes");
  input_bytes = *sum;
  return absl::OkStatus();
}

absl::Status CheckFloatTensor(absl::string_view field, const InputTensor& tensor, std::size_t rank,
                              absl::string_view dimensions, bool reference, std::int64_t& input_bytes) {
  ATTND_RETURN_IF_ERROR(CheckFloat(field, tensor.dtype, reference));
  if (tensor.shape.size() != rank)
    return RefuseShape(field, tensor, rank, rank == 1 ? " dimension " : " dimensions ", dimensions);
  return CheckSize(field, tensor, input_bytes);
}

namespace {

// "B = 2 as in q"
std::string Same(absl::string_view symbol, std::int64_t value, absl::string_view source) {
  return absl::StrCat(symbol, " = ", value, " as in ", source);
}

// The view [B, H, N, d] of a dense tensor that came in either layout.
TensorView ViewOf(const InputTensor& tensor, Layout layout) {
  const std::vector<std::int64_t>& s = tensor.shape;
  const std::vector<std::int64_t>& r = tensor.room.empty() ? s : tensor.room;
  if (layout == Layout::kBHND)
    return {tensor.dtype, tensor.data, {s[0], s[1], s[2], s[3]}, {r[1] * r[2] * r[3], r[2] * r[3], r[3], 1}};
  return {tensor.dtype, tensor.data, {s[0], s[2], s[1], s[3]}, {r[1] * r[2] * r[3], r[3], r[2] * r[3], 1}};
}

// Values that a view of this shape stands for can be counted in bytes, whatever type they are brought to.
bool Countable(const TensorView& view) {
  const auto [b, h, n, d] = view.shape;
  return CheckedProduct({b == 0 ? 1 : b, h, n == 0 ? 1 : n, d, ElementBytes(DType::kFloat64)}).has_value();
}

// Turns the views of k and v from [P, Hkv, R, d] to [B, Hkv, T * R, d] through the table.
absl::Status ResolvePages(const ProblemInputs& inputs, Problem& problem) {
  constexpr absl::string_view kField = "options.page_table";
  const InputTensor& table = *inputs.options.page_table;
  if (table.dtype != DType::kInt64) return Refuse(kField, "dtype ", Name(table.dtype), ", expected int64");
  if (table.shape.size() != 2) return RefuseShape(kField, table, "2 dimensions [B, T]");
  ATTND_RETURN_IF_ERROR(CheckSize(kField, table, problem.input_bytes));
  if (table.shape[0] != problem.batch) return RefuseShape(kField, table, Same("B", problem.batch, "q"));
  const std::int64_t places = table.shape[1], page_rows = problem.kv_rows;
  if (places > 0 && page_rows == 0)
    return RefuseShape("k", *inputs.k, "R of at least 1 where page_table has T = ", places);
  const std::optional<std::int64_t> keys = CheckedProduct({places, page_rows});
  const auto resolve = [&](const InputTensor& tensor, absl::string_view field, TensorView& view,
                           std::shared_ptr<const std::vector<const std::byte*>>& owned) -> absl::Status {
    view.pages = {page_rows, view.shape[0], places, table.data};
    view.shape[0] = problem.batch;
    view.shape[2] = keys.value_or(0);
    if (!keys || !Countable(view)) {
      return RefuseShape(kField, table, "a ", field,
                         " of T * R keys whose bytes fit a signed 64-bit integer, with R = ", page_rows);
    }
    if (tensor.pages.empty()) return absl::OkStatus();
    if (static_cast<std::int64_t>(tensor.pages.size()) != view.pages.count) {
      return RefuseShape(field, tensor, "P = ", tensor.pages.size(), " as pages came");
    }
    owned = std::make_shared<const std::vector<const std::byte*>>(tensor.pages);
    view.pages.addresses = owned->data();
    return absl::OkStatus();
  };
  ATTND_RETURN_IF_ERROR(resolve(*inputs.k, "k", problem.k, problem.k_pages));
  ATTND_RETURN_IF_ERROR(resolve(*inputs.v, "v", problem.v, problem.v_pages));
  problem.kv_rows = *keys;
  return absl::OkStatus();
}

absl::Status ResolveQkv(const ProblemInputs& inputs, Problem& problem) {
  const Layout layout = inputs.options.layout;
  const bool paged = inputs.options.page_table.has_value();
  const auto view = [&](absl::string_view field, const std::optional<InputTensor>& tensor, absl::string_view bhnd,
                        absl::string_view bnhd, TensorView& out) -> absl::Status {
    if (!tensor) return Refuse(field, "missing, expected q, k and v, or x with projection");
    ATTND_RETURN_IF_ERROR(CheckFloatTensor(field, *tensor, 4, layout == Layout::kBHND ? bhnd : bnhd, problem.reference,
                                           problem.input_bytes));
    if (!tensor->pages.empty() && (!paged || field == "q"))
      return Refuse(field, "pages one by one, expected for k and v with options.page_table only");
    out = ViewOf(*tensor, layout);
    return absl::OkStatus();
  };
  ATTND_RETURN_IF_ERROR(view("q", inputs.q, "[B, Hq, Nq, d_k]", "[B, Nq, Hq, d_k]", problem.q));
  ATTND_RETURN_IF_ERROR(view("k", inputs.k, paged ? "[P, Hkv, R, d_k]" : "[B, Hkv, Nk, d_k]",
                             paged ? "[P, R, Hkv, d_k]" : "[B, Nk, Hkv, d_k]", problem.k));
  ATTND_RETURN_IF_ERROR(view("v", inputs.v, paged ? "[P, Hkv, R, d_v]" : "[B, Hkv, Nk, d_v]",
                             paged ? "[P, R, Hkv, d_v]" : "[B, Nk, Hkv, d_v]", problem.v));

  const auto [batch, q_heads, q_rows, d_k] = problem.q.shape;
  const auto [k_batch, kv_heads, kv_rows, k_width] = problem.k.shape;  // paged: P and R in place of B and Nk
  const auto [v_batch, v_heads, v_rows, d_v] = problem.v.shape;
  if (q_heads == 0) return RefuseShape("q", *inputs.q, "Hq of at least 1");
  if (d_k == 0) return RefuseShape("q", *inputs.q, "d_k of at least 1");
  if (!paged && k_batch != batch) return RefuseShape("k", *inputs.k, Same("B", batch, "q"));
  if (kv_heads == 0) return RefuseShape("k", *inputs.k, "Hkv of at least 1");
  if (q_heads % kv_heads != 0) return RefuseShape("k", *inputs.k, "Hkv to divide Hq = ", q_heads, " of q");
  if (k_width != d_k) return RefuseShape("k", *inputs.k, Same("d_k", d_k, "q"));
  if (v_batch != k_batch) return RefuseShape("v", *inputs.v, paged ? Same("P", k_batch, "k") : Same("B", batch, "q"));
  if (v_heads != kv_heads) return RefuseShape("v", *inputs.v, Same("Hkv", kv_heads, "k"));
  if (v_rows != kv_rows) return RefuseShape("v", *inputs.v, Same(paged ? "R" : "Nk", kv_rows, "k"));
  if (d_v == 0) return RefuseShape("v", *inputs.v, "d_v of at least 1");

  problem.batch = batch;
  problem.q_heads = q_heads;
  problem.kv_heads = kv_heads;
  problem.q_rows = q_rows;
  problem.kv_rows = kv_rows;
  problem.d_k = d_k;
  problem.d_v = d_v;
  return paged ? ResolvePages(inputs, problem) : absl::OkStatus();
}

// One weight matrix of known `in`, any `out` of at least 1, with its bias.
absl::Status ResolveLinear(absl::string_view name, const std::optional<InputTensor>& weight,
                           const std::optional<InputTensor>& bias, bool transposed, std::int64_t in,
                           absl::string_view in_words, Problem& problem, Linear& out) {
  const std::string field = absl::StrCat("projection.w_", name);
  if (!weight) return Refuse(field, "missing");
  ATTND_RETURN_IF_ERROR(CheckFloatTensor(field, *weight, 2, transposed ? "[out, in]" : "[in, out]", problem.reference,
                                         problem.input_bytes));
  const std::int64_t given_in = weight->shape[transposed ? 1 : 0];
  out = Linear{};
  out.dtype = weight->dtype;
  out.weight = weight->data;
  out.in = in;
  out.out = weight->shape[transposed ? 0 : 1];
  out.transposed = transposed;
  if (given_in != in) {
    return RefuseShape(field, *weight, in_words, " = ", in, " inputs",
                       transposed ? " (weights_transposed: [out, in])" : "");
  }
  if (out.out == 0) return RefuseShape(field, *weight, "at least 1 output");
  if (bias) {
    const std::string bias_field = absl::StrCat("projection.b_", name);
    ATTND_RETURN_IF_ERROR(CheckFloatTensor(bias_field, *bias, 1, "[out]", problem.reference, problem.input_bytes));
    if (bias->shape[0] != out.out) return RefuseShape(bias_field, *bias, "[", out.out, "] as in ", field);
    out.bias_dtype = bias->dtype;
    out.bias = bias->data;
  }
  return absl::OkStatus();
}

// The width of one head of a projection, which has a whole number of columns per head.
absl::StatusOr<std::int64_t> HeadWidth(absl::string_view field, const InputTensor& weight, const Linear& linear,
                                       std::int64_t heads, absl::string_view heads_symbol) {
  if (linear.out % heads != 0) {
    return RefuseShape(field, weight, "outputs a multiple of ", heads_symbol, " = ", heads);
  }
  return linear.out / heads;
}

absl::Status ResolveProjection(const ProblemInputs& inputs, Problem& problem) {
  if (!inputs.projection) return Refuse("projection", "missing, expected with x");
  const InputTensor& x = *inputs.x;
  const ProjectionInputs& given = *inputs.projection;
  ATTND_RETURN_IF_ERROR(CheckFloatTensor("x", x, 3, "[B, N, d_model]", problem.reference, problem.input_bytes));
  const std::int64_t rows = x.shape[1], d_model = x.shape[2];
  if (d_model == 0) return RefuseShape("x", x, "d_model of at least 1");
  if (given.q_heads < 1) return Refuse("projection.q_heads", given.q_heads, ", expected at least 1");
  if (given.kv_heads < 1) return Refuse("projection.kv_heads", given.kv_heads, ", expected at least 1");
  if (given.q_heads % given.kv_heads != 0) {
    return Refuse("projection.kv_heads", given.kv_heads, ", expected a divisor of q_heads = ", given.q_heads);
  }

  Projection projection;
  projection.x = {x.dtype, x.data, {x.shape[0], 1, rows, d_model}, {rows * d_model, rows * d_model, d_model, 1}};
  projection.d_model = d_model;
  const auto linear = [&](absl::string_view name, const auto& weight, const auto& bias, Linear& out) {
    return ResolveLinear(name, weight, bias, given.weights_transposed, d_model, "d_model", problem, out);
  };
  ATTND_RETURN_IF_ERROR(linear("q", given.w_q, given.b_q, projection.q));
  ATTND_RETURN_IF_ERROR(linear("k", given.w_k, given.b_k, projection.k));
  ATTND_RETURN_IF_ERROR(linear("v", given.w_v, given.b_v, projection.v));
  const auto d_k = HeadWidth("projection.w_q", *given.w_q, projection.q, given.q_heads, "q_heads");
  if (!d_k.ok()) return d_k.status();
  const auto k_width = HeadWidth("projection.w_k", *given.w_k, projection.k, given.kv_heads, "kv_heads");
  if (!k_width.ok()) return k_width.status();
  if (*k_width != *d_k) {
    return RefuseShape("projection.w_k", *given.w_k, given.kv_heads, " heads of ", Same("d_k", *d_k, "projection.w_q"));
  }
  const auto d_v = HeadWidth("projection.w_v", *given.w_v, projection.v, given.kv_heads, "kv_heads");
  if (!d_v.ok()) return d_v.status();
  problem.batch = x.shape[0];
  problem.q_heads = given.q_heads;
  problem.kv_heads = given.kv_heads;
  problem.q_rows = problem.kv_rows = rows;
  problem.d_k = *d_k;
  problem.d_v = *d_v;

  if (given.b_o && !given.w_o) return Refuse("projection.b_o", "given without projection.w_o");
  if (given.w_o) {
    const std::optional<std::int64_t> heads_width = CheckedProduct({given.q_heads, *d_v});
    if (!heads_width) return RefuseShape("projection.w_v", *given.w_v, "Hq * d_v to fit a signed 64-bit integer");
    Linear& o = projection.o.emplace();
    ATTND_RETURN_IF_ERROR(
        ResolveLinear("o", given.w_o, given.b_o, given.weights_transposed, *heads_width, "Hq * d_v", problem, o));
    problem.d_out = o.out;
  }
  problem.projection = projection;

  // Views of projected values have no data; their shapes must still be countable.
  const std::int64_t batch = problem.batch;
  problem.q = {DType::kFloat32, nullptr, {batch, problem.q_heads, rows, problem.d_k}, {}};
  problem.k = {DType::kFloat32, nullptr, {batch, problem.kv_heads, rows, problem.d_k}, {}};
  problem.v = {DType::kFloat32, nullptr, {batch, problem.kv_heads, rows, problem.d_v}, {}};
  for (const TensorView* view : {&problem.q, &problem.k, &problem.v}) {
    if (!Countable(*view)) return RefuseShape("x", x, "projected tensors whose bytes fit a signed 64-bit integer");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ResolveTensors(const ProblemInputs& inputs, Problem& problem) {
  problem.layout = inputs.options.layout;
  problem.reference = inputs.options.reference;
  if (!inputs.x) {
    if (inputs.projection) return Refuse("projection", "given without x");
    return ResolveQkv(inputs, problem);
  }
  for (const auto& [field, tensor] : {std::pair{"q", &inputs.q}, {"k", &inputs.k}, {"v", &inputs.v}}) {
    if (*tensor) return Refuse(field, "given together with x, expected either q, k and v, or x with projection");
  }
  if (inputs.options.page_table) return Refuse("options.page_table", "given with x, expected with q, k and v only");
  return ResolveProjection(inputs, problem);
}

}  // namespace attnd
