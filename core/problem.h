// One attention problem: what came (ProblemInputs), and the same thing validated, resolved and immutable (Problem).
//
// `Problem::Create` is the only place that decides whether a problem means anything. It needs shapes, not data: a
// tensor's `data` may be null until its bytes are there, and the problem can then be created a second time with
// pointers. What depends on contents (mask bytes, page tables) is checked by `CheckContents`; a page table that it has
// not passed must not be computed with. Thread rule: a Problem never changes after Create; any number of threads may
// read it. It owns no tensor bytes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/tensor.h"

namespace attnd {

// "OUTPUT_KIND_WEIGHTS", ...: the wire's name, for errors.
std::string_view Name(OutputKind kind);

struct InputTensor {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  // Its bytes are not this problem's own: others read them too, and they are not counted among its inputs.
  bool shared = false;
  // Where the bytes have room for more along one dimension, the shape they have room for, by which rows lie apart; else
  // empty. q, k and v only.
  std::vector<std::int64_t> room{};
  // Instead of data, for k and v with options.page_table: the address of each of the shape[0] pages, of shape[1..3]
  // elements; null where no key below kv_len needs the page.
  std::vector<const std::byte*> pages{};
};

struct ProjectionInputs {
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;
  std::optional<InputTensor> w_q, w_k, w_v, b_q, b_k, b_v, w_o, b_o;
  bool weights_transposed = false;
};

enum class RotaryStyle : std::uint8_t { kHalf, kInterleaved };

struct RotaryInputs {
  RotaryStyle style = RotaryStyle::kHalf;
  std::int64_t rotary_dim = 0;
  std::optional<double> rope_base;
  std::optional<InputTensor> q_positions, k_positions;
};

struct OptionInputs {
  std::optional<double> scale;
  bool causal = false;
  std::optional<std::int64_t> window_left, window_right;
  std::vector<std::int64_t> q_offset, q_len, kv_len, lengths;
  std::optional<InputTensor> mask, bias;
  std::optional<double> softcap;
  std::vector<float> alibi_slopes, sinks;
  std::optional<RotaryInputs> rotary;
  Layout layout = Layout::kBHND;
  std::optional<DType> output_dtype;
  bool reference = false;
  // [B, T] int64: k and v are P pages of R rows, [P, Hkv, R, d] or by layout [P, R, Hkv, d], and key j of sequence b is
  // row j % R of page page_table[b, j / R]. Nk = T * R.
  std::optional<InputTensor> page_table;
};

// Field names in errors are the wire's: "k", "options.kv_len", "projection.w_q".
struct ProblemInputs {
  std::optional<InputTensor> q, k, v, x;
  std::optional<ProjectionInputs> projection;
  OptionInputs options;
  std::vector<OutputKind> outputs;
};

// A weight matrix with its bias, as a view of what came.
struct Linear {
  DType dtype = DType::kFloat32;
  const std::byte* weight = nullptr;  // [in, out], or [out, in] when transposed
  std::int64_t in = 0, out = 0;
  bool transposed = false;
  std::optional<DType> bias_dtype;
  const std::byte* bias = nullptr;  // [out], null when there is none

  // The same matrix and bias at the same address.
  bool operator==(const Linear&) const = default;
};

struct Projection {
  TensorView x;  // [B, 1, N, d_model]
  std::int64_t d_model = 0;
  Linear q, k, v;
  std::optional<Linear> o;  // out = d_out
};

struct Rotary {
  RotaryStyle style = RotaryStyle::kHalf;
  std::int64_t rotary_dim = 0;
  double base = 10000;
  const std::byte* q_positions = nullptr;  // [B, Nq] int64 or null: p
  const std::byte* k_positions = nullptr;  // [B, Nk] int64 or null: j
  bool has_q_positions = false, has_k_positions = false;
};

// What a server will not even look at further. Each is RESOURCE_EXHAUSTED with the flag that sets it.
struct ProblemLimits {
  std::int64_t sequence_heads_max = std::int64_t{1} << 21;  // B * Hq, flag sequence_heads_max
  std::int64_t rows_max = std::int64_t{1} << 28;            // B * Hq * (Nq + Nk), flag rows_max
  std::int64_t width_max = std::int64_t{1} << 20;           // each of d_k, d_v, d_model and d_out, flag width_max
};

class Problem {
 public:
  // INVALID_ARGUMENT names the field, what came and what was expected; RESOURCE_EXHAUSTED names a flag of `limits`.
  static absl::StatusOr<Problem> Create(const ProblemInputs& inputs, const ProblemLimits& limits);

  // Mask bytes are 0 or 1; page table entries that a key below kv_len needs are pages. Needs every data pointer set.
  // INVALID_ARGUMENT.
  absl::Status CheckContents() const;

  bool Wants(OutputKind kind) const { return wanted[static_cast<int>(kind)]; }

  // Shape [B, H, rows, columns] of an output, blocks' own order ([B, Hq, Nq, 1] for LSE, [B, 1, Nq, d_out] with w_o).
  std::array<std::int64_t, 4> OutputShape(OutputKind kind) const;
  // Shape as a reply carries it: by layout, LSE of rank 3, [B, N, d_out] of rank 3.
  std::vector<std::int64_t> ReplyShape(OutputKind kind) const;
  DType OutputDType(OutputKind kind) const;

  // The half-open range of keys that row i of sequence b may see by lengths, causal frontier and window; empty when
  // first >= end or i >= q_len[b]. Masks and biases are not looked at.
  struct KeyRange {
    std::int64_t first = 0, end = 0;
  };
  KeyRange VisibleKeys(std::int64_t b, std::int64_t i) const;

  std::int64_t batch = 0, q_heads = 0, kv_heads = 0;  // B, Hq, Hkv
  std::int64_t q_rows = 0, kv_rows = 0;               // Nq, Nk
  std::int64_t d_k = 0, d_v = 0;
  std::int64_t d_out = 0;  // 0 without w_o

  TensorView q, k, v;  // [B, H, N, d]; data is null with a projection; k and v are paged with a page table
  std::optional<Projection> projection;

  double scale = 0;
  bool causal = false;
  std::optional<std::int64_t> window_left, window_right;
  std::vector<std::int64_t> q_offset, q_len, kv_len;  // B values each, resolved
  std::optional<TensorView> mask;                     // broadcast to [B, Hq, Nq, Nk], bool
  std::optional<TensorView> bias;                     // broadcast likewise, float
  std::optional<double> softcap;
  std::vector<float> alibi_slopes, sinks;  // Hq values or none
  std::optional<Rotary> rotary;
  Layout layout = Layout::kBHND;
  DType output_dtype = DType::kFloat32;
  bool reference = false;
  std::vector<OutputKind> extras;  // as asked, without kOutput
  std::array<bool, kOutputKindCount> wanted{};

  std::int64_t mask_elements = 0;  // bytes of the mask as it came, before broadcasting
  std::int64_t input_bytes = 0;    // of all tensors but shared ones
  // What the views' pages.addresses point to, where pages came one by one.
  std::shared_ptr<const std::vector<const std::byte*>> k_pages, v_pages;
};

}  // namespace attnd
