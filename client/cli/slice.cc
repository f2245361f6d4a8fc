#include "client/cli/slice.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace attnd::client {

namespace {

// Rows [0, rows) of one head as [1, 1, rows, d] in float64: widening is exact.
absl::StatusOr<Array> HeadAsDouble(const TensorRead& from, std::int64_t b, std::int64_t h) {
  absl::StatusOr<Array> array = Array::Zeros(DType::kFloat64, {1, 1, from.shape[2], from.shape[3]});
  if (!array.ok()) return array;
  std::int64_t to = 0;
  for (std::int64_t n = 0; n < from.shape[2]; ++n) {
    for (std::int64_t c = 0; c < from.shape[3]; ++c) array->Set(to++, from.At(b, h, n, c));
  }
  return array;
}

std::int64_t Given(const google::protobuf::RepeatedField<std::int64_t>& values, std::int64_t b,
                   std::int64_t otherwise) {
  return b < values.size() ? values.Get(static_cast<int>(b)) : otherwise;
}

}  // namespace

TensorRead TensorRead::Heads(const v1::Tensor& tensor, v1::Layout layout) {
  TensorRead read;
  read.tensor = &tensor;
  const bool bnhd = layout == v1::LAYOUT_BNHD;
  const int order[4] = {0, bnhd ? 2 : 1, bnhd ? 1 : 2, 3};  // where B, H, N, d stand
  std::int64_t step[4] = {0, 0, 0, 1};
  for (int d = 3; d-- > 0;) step[d] = step[d + 1] * tensor.shape(d + 1);
  for (int d = 0; d < 4; ++d) {
    read.shape[d] = tensor.shape(order[d]);
    read.stride[d] = step[order[d]];
  }
  return read;
}

TensorRead TensorRead::Keys(const v1::Tensor& tensor, const v1::Options& options) {
  TensorRead read = Heads(tensor, options.layout());
  if (!options.has_page_table()) return read;
  read.page_table = &options.page_table();
  read.page_rows = read.shape[2];
  read.shape[0] = read.page_table->shape(0);
  read.shape[2] = read.page_rows * read.page_table->shape(1);
  return read;
}

TensorRead TensorRead::Broadcast(const v1::Tensor& tensor) {
  TensorRead read;
  read.tensor = &tensor;
  std::int64_t step = 1;
  for (int d = 4; d-- > 0;) {
    const int own = d - 4 + tensor.shape_size();
    read.shape[d] = own >= 0 ? tensor.shape(own) : 1;
    read.stride[d] = read.shape[d] == 1 ? 0 : step;
    step *= read.shape[d];
  }
  return read;
}

double TensorRead::At(std::int64_t b, std::int64_t h, std::int64_t n, std::int64_t c) const {
  if (page_table != nullptr) {
    std::int64_t page = 0;
    std::memcpy(&page, page_table->data().data() + 8 * (b * page_table->shape(1) + n / page_rows), sizeof(page));
    if (page < 0 || page >= tensor->shape(0)) return std::numeric_limits<double>::quiet_NaN();
    b = page;
    n %= page_rows;
  }
  const std::int64_t index = b * stride[0] + h * stride[1] + n * stride[2] + c * stride[3];
  const char* from = tensor->data().data();
  switch (tensor->dtype()) {
    case v1::DATA_TYPE_FLOAT32: {
      float value;
      std::memcpy(&value, from + 4 * index, 4);
      return value;
    }
    case v1::DATA_TYPE_FLOAT64: {
      double value;
      std::memcpy(&value, from + 8 * index, 8);
      return value;
    }
    case v1::DATA_TYPE_FLOAT16:
    case v1::DATA_TYPE_BFLOAT16: {
      std::uint16_t bits;
      std::memcpy(&bits, from + 2 * index, 2);
      return tensor->dtype() == v1::DATA_TYPE_FLOAT16 ? Float16ToDouble(bits) : BFloat16ToDouble(bits);
    }
    default: return from[index];
  }
}

double Tolerance(double a, double value_max) {
  return 8 * std::ldexp(1.0, -24) * (4 + a) * value_max + std::ldexp(1.0, -126);
}

absl::StatusOr<RowSlice> SliceRows(const Problem& whole, std::int64_t b, std::int64_t h,
                                   const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& q_offset) {
  const v1::AttendRequest& request = whole.request();
  const v1::Options& options = request.options();
  if (whole.uses_stored()) {
    return absl::UnimplementedError("single rows can be recomputed of what is here, not of what the server has stored");
  }
  if (request.has_x() || options.has_rotary()) {
    return absl::UnimplementedError(
        "single rows can be recomputed for q, k, v without rotary embedding, not for x or rotary");
  }
  const TensorRead q = TensorRead::Heads(request.q(), options.layout());
  const TensorRead k = TensorRead::Keys(request.k(), options);
  const TensorRead v = TensorRead::Keys(request.v(), options);
  const std::int64_t kv_head = h / (q.shape[1] / k.shape[1]);
  const std::int64_t keys = k.shape[2], d_k = k.shape[3], d_v = v.shape[3],
                     count = static_cast<std::int64_t>(rows.size());
  const std::int64_t q_len = Given(options.q_len(), b, q.shape[2]), kv_len = Given(options.kv_len(), b, keys);
  const double scale = options.has_scale() ? options.scale() : 1 / std::sqrt(static_cast<double>(d_k));
  const double slope = h < options.alibi_slopes_size() ? options.alibi_slopes(static_cast<int>(h)) : 0;
  absl::StatusOr<Array> key_array = HeadAsDouble(k, b, kv_head), value_array = HeadAsDouble(v, b, kv_head);
  absl::StatusOr<Array> query_array = Array::Zeros(DType::kFloat64, {1, 1, count, d_k});
  absl::StatusOr<Array> mask = Array::Zeros(DType::kBool, {count, keys}),
                        bias = Array::Zeros(DType::kFloat64, {count, keys});
  for (const auto* array : {&key_array, &value_array, &query_array, &mask, &bias}) {
    if (!array->ok()) return array->status();
  }
  std::vector<RowBound> bounds(rows.size());
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t i = rows[static_cast<std::size_t>(r)];
    const std::int64_t p = i + q_offset[static_cast<std::size_t>(b)];
    RowBound& bound = bounds[static_cast<std::size_t>(r)];
    bound.beyond = i >= q_len;
    for (std::int64_t c = 0; c < d_k; ++c) query_array->Set(r * d_k + c, q.At(b, h, i, c));
    for (std::int64_t j = 0; j < keys; ++j) {
      bool allowed = !bound.beyond && j < kv_len && !(options.causal() && j > p) &&
                     !(options.has_window_left() && j < p - options.window_left()) &&
                     !(options.has_window_right() && j > p + options.window_right());
      if (allowed && options.has_mask()) allowed = TensorRead::Broadcast(options.mask()).At(b, h, i, j) != 0;
      double added = -slope * std::fabs(static_cast<double>(p - j));
      double size = std::fabs(added);
      if (allowed && options.has_bias()) {
        const double given = TensorRead::Broadcast(options.bias()).At(b, h, i, j);
        allowed = given != -std::numeric_limits<double>::infinity();
        added += given;
        size += std::fabs(given);
      }
      if (!allowed) continue;
      mask->bytes[static_cast<std::size_t>(r * keys + j)] = 1;
      bias->Set(r * keys + j, added);
      for (std::int64_t c = 0; c < d_k; ++c) {
        size += std::fabs(scale) * std::fabs(query_array->At(r * d_k + c)) * std::fabs(key_array->At(j * d_k + c));
      }
      bound.a = std::max(bound.a, size);
      for (std::int64_t c = 0; c < d_v; ++c)
        bound.value_max = std::max(bound.value_max, std::fabs(value_array->At(j * d_v + c)));
    }
  }
  absl::StatusOr<Problem> problem =
      Problem::FromQkv(*std::move(query_array), *std::move(key_array), *std::move(value_array));
  if (!problem.ok()) return problem.status();
  problem->SetMask(*std::move(mask));
  if (options.has_bias() || slope != 0) problem->SetBias(*std::move(bias));
  if (options.has_scale()) problem->options().set_scale(options.scale());
  if (options.has_softcap()) problem->options().set_softcap(options.softcap());
  if (h < options.sinks_size()) problem->options().add_sinks(options.sinks(static_cast<int>(h)));
  problem->options().set_mode(v1::COMPUTE_MODE_REFERENCE);
  problem->Want(v1::OUTPUT_KIND_WEIGHTS);
  return RowSlice{*std::move(problem), std::move(bounds)};
}

}  // namespace attnd::client
