// How scores are made and which keys a row may see: every rule of the options, after the tensors' shapes are known.
#include <cmath>
#include <limits>

#include "core/checked.h"
#include "core/problem_checks.h"

namespace attnd {
namespace {

constexpr std::int64_t kOffsetMax = std::int64_t{1} << 40;

// One value per sequence, each in [low, high], or none.
absl::Status CheckPerSequence(absl::string_view field, const std::vector<std::int64_t>& values, std::int64_t batch,
                              std::int64_t low, std::int64_t high) {
  if (values.empty()) return absl::OkStatus();
  if (static_cast<std::int64_t>(values.size()) != batch) {
    return Refuse(field, values.size(), " values, expected B = ", batch, " or none");
  }
  for (std::size_t b = 0; b < values.size(); ++b) {
    if (values[b] < low || values[b] > high) {
      return Refuse(field, values[b], " for sequence ", b, ", expected ", low, " to ", high);
    }
  }
  return absl::OkStatus();
}

// Row positions reach the result, so a q_offset that was guessed wrong would too.
bool PositionsMatter(const OptionInputs& options) {
  return options.causal || options.window_left || options.window_right || !options.alibi_slopes.empty() ||
         (options.rotary && !options.rotary->q_positions);
}

absl::Status ResolveLengths(const OptionInputs& options, Problem& problem) {
  const std::int64_t batch = problem.batch;
  if (!options.lengths.empty()) {
    if (!problem.projection) return Refuse("options.lengths", "given without x, expected q_len and kv_len");
    if (!options.q_len.empty()) return Refuse("options.q_len", "given together with lengths, which sets it");
    if (!options.kv_len.empty()) return Refuse("options.kv_len", "given together with lengths, which sets it");
  }
  ATTND_RETURN_IF_ERROR(CheckPerSequence("options.lengths", options.lengths, batch, 0, problem.q_rows));
  ATTND_RETURN_IF_ERROR(CheckPerSequence("options.q_len", options.q_len, batch, 0, problem.q_rows));
  ATTND_RETURN_IF_ERROR(CheckPerSequence("options.kv_len", options.kv_len, batch, 0, problem.kv_rows));
  ATTND_RETURN_IF_ERROR(CheckPerSequence("options.q_offset", options.q_offset, batch, -kOffsetMax, kOffsetMax));
  if (!options.kv_len.empty() && options.q_len.empty() && options.q_offset.empty() && problem.q_rows > 1 &&
      PositionsMatter(options)) {
    return Refuse(
        "options.kv_len", "given without q_len and q_offset for Nq = ", problem.q_rows,
        " rows whose positions matter, expected one of the two: by default the last row would stand at the last"
        " key, which is wrong for right-padded self-attention");
  }

  const auto resolve = [&](const std::vector<std::int64_t>& given, std::int64_t whole) {
    if (!options.lengths.empty()) return options.lengths;
    return given.empty() ? std::vector<std::int64_t>(batch, whole) : given;
  };
  problem.q_len = resolve(options.q_len, problem.q_rows);
  problem.kv_len = resolve(options.kv_len, problem.kv_rows);
  for (std::int64_t b = 0; problem.k.paged() && problem.k.pages.count == 0 && b < batch; ++b) {
    if (problem.kv_len[b] > 0) {
      return Refuse("options.page_table", "sequence ", b, " has ", problem.kv_len[b],
                    " keys, expected none (k has 0 pages)");
    }
  }
  problem.q_offset = options.q_offset;
  if (problem.q_offset.empty()) {
    problem.q_offset.resize(batch);
    for (std::int64_t b = 0; b < batch; ++b) problem.q_offset[b] = problem.kv_len[b] - problem.q_len[b];
  }
  return absl::OkStatus();
}

// Right-aligned broadcast of rank 1 to 4 to [B, Hq, Nq, Nk]: each dimension is the target's or 1.
absl::StatusOr<TensorView> Broadcast(absl::string_view field, const InputTensor& tensor, Problem& problem) {
  const std::array<std::int64_t, 4> target = {problem.batch, problem.q_heads, problem.q_rows, problem.kv_rows};
  const std::size_t rank = tensor.shape.size();
  if (rank < 1 || rank > 4) return RefuseShape(field, tensor, "1 to 4 dimensions, broadcast to [B, Hq, Nq, Nk]");
  ATTND_RETURN_IF_ERROR(CheckSize(field, tensor, problem.input_bytes));
  TensorView view{tensor.dtype, tensor.data, target, {}};
  std::int64_t stride = 1;
  for (std::size_t from_right = 0; from_right < rank; ++from_right) {
    const std::int64_t dimension = tensor.shape[rank - 1 - from_right];
    const std::size_t axis = 3 - from_right;
    if (dimension != 1 && dimension != target[axis]) {
      return RefuseShape(field, tensor,
                         "to broadcast to [B, Hq, Nq, Nk] = ", ShapeText({target.begin(), target.end()}));
    }
    view.stride[axis] = dimension == 1 ? 0 : stride;
    stride *= dimension;
  }
  return view;
}

absl::Status ResolveMaskAndBias(const OptionInputs& options, Problem& problem) {
  if (options.mask) {
    if (options.mask->dtype != DType::kBool) {
      return Refuse("options.mask", "dtype ", Name(options.mask->dtype),
                    ", expected bool (a float mask is options.bias)");
    }
    const auto view = Broadcast("options.mask", *options.mask, problem);
    if (!view.ok()) return view.status();
    problem.mask = *view;
    problem.mask_elements = *CheckedProduct(options.mask->shape);
  }
  if (options.bias) {
    ATTND_RETURN_IF_ERROR(CheckFloat("options.bias", options.bias->dtype, problem.reference));
    const auto view = Broadcast("options.bias", *options.bias, problem);
    if (!view.ok()) return view.status();
    problem.bias = *view;
  }
  return absl::OkStatus();
}

absl::Status ResolveScores(const OptionInputs& options, Problem& problem) {
  problem.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(problem.d_k)));
  if (!std::isfinite(problem.scale)) return Refuse("options.scale", problem.scale, ", expected a finite number");
  if (!problem.reference && std::abs(problem.scale) > std::numeric_limits<float>::max()) {
    return Refuse("options.scale", problem.scale, ", expected a number that float32 holds outside reference mode");
  }
  if (options.softcap && !(std::isfinite(*options.softcap) && *options.softcap > 0)) {
    return Refuse("options.softcap", *options.softcap, ", expected a finite number over 0");
  }
  problem.softcap = options.softcap;

  problem.causal = options.causal;
  for (const auto& [field, window] :
       {std::pair{"options.window_left", options.window_left}, {"options.window_right", options.window_right}}) {
    if (window && *window < 0) return Refuse(field, *window, ", expected at least 0");
  }
  problem.window_left = options.window_left;
  problem.window_right = options.window_right;

  for (const auto& [field, values] :
       {std::pair{"options.alibi_slopes", &options.alibi_slopes}, {"options.sinks", &options.sinks}}) {
    if (!values->empty() && static_cast<std::int64_t>(values->size()) != problem.q_heads) {
      return Refuse(field, values->size(), " values, expected Hq = ", problem.q_heads, " or none");
    }
  }
  for (std::size_t h = 0; h < options.alibi_slopes.size(); ++h) {
    const float slope = options.alibi_slopes[h];
    if (!std::isfinite(slope))
      return Refuse("options.alibi_slopes", slope, " for head ", h, ", expected a finite number");
  }
  for (std::size_t h = 0; h < options.sinks.size(); ++h) {
    const float sink = options.sinks[h];
    if (std::isnan(sink) || sink == std::numeric_limits<float>::infinity()) {
      return Refuse("options.sinks", sink, " for head ", h, ", expected a finite number, or -inf for none");
    }
  }
  problem.alibi_slopes = options.alibi_slopes;
  problem.sinks = options.sinks;
  return absl::OkStatus();
}

absl::Status ResolveRotary(const OptionInputs& options, Problem& problem) {
  if (!options.rotary) return absl::OkStatus();
  const RotaryInputs& given = *options.rotary;
  if (given.rotary_dim < 2 || given.rotary_dim % 2 != 0 || given.rotary_dim > problem.d_k) {
    return Refuse("options.rotary.rotary_dim", given.rotary_dim,
                  ", expected an even number from 2 to d_k = ", problem.d_k);
  }
  Rotary rotary;
  rotary.style = given.style;
  rotary.rotary_dim = given.rotary_dim;
  rotary.base = given.rope_base.value_or(rotary.base);
  if (!(std::isfinite(rotary.base) && rotary.base > 0)) {
    return Refuse("options.rotary.rope_base", rotary.base, ", expected a finite number over 0");
  }
  const auto positions = [&](absl::string_view field, const std::optional<InputTensor>& tensor,
                             absl::string_view symbol, std::int64_t rows, bool& has,
                             const std::byte*& data) -> absl::Status {
    if (!tensor) return absl::OkStatus();
    if (tensor->dtype != DType::kInt64) return Refuse(field, "dtype ", Name(tensor->dtype), ", expected int64");
    if (tensor->shape != std::vector<std::int64_t>{problem.batch, rows}) {
      return RefuseShape(field, *tensor, "[B, ", symbol, "] = [", problem.batch, ",", rows, "]");
    }
    has = true;
    data = tensor->data;
    return CheckSize(field, *tensor, problem.input_bytes);
  };
  ATTND_RETURN_IF_ERROR(positions("options.rotary.q_positions", given.q_positions, "Nq", problem.q_rows,
                                  rotary.has_q_positions, rotary.q_positions));
  ATTND_RETURN_IF_ERROR(positions("options.rotary.k_positions", given.k_positions, "Nk", problem.kv_rows,
                                  rotary.has_k_positions, rotary.k_positions));
  problem.rotary = rotary;
  return absl::OkStatus();
}

}  // namespace

absl::Status ResolveOptions(const OptionInputs& options, Problem& problem) {
  ATTND_RETURN_IF_ERROR(ResolveScores(options, problem));
  ATTND_RETURN_IF_ERROR(ResolveMaskAndBias(options, problem));
  ATTND_RETURN_IF_ERROR(ResolveRotary(options, problem));
  if (options.output_dtype)
    ATTND_RETURN_IF_ERROR(CheckFloat("options.output_dtype", *options.output_dtype, problem.reference));
  const DType given = problem.projection ? problem.projection->x.dtype : problem.q.dtype;
  problem.output_dtype = options.output_dtype.value_or(given);
  return ResolveLengths(options, problem);
}

}  // namespace attnd
