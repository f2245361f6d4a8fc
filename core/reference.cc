#include "core/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace attnd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Threads that compute take subnormal numbers for 0. A cap so small is the smallest number that is not; and where the
// quotient is so small, or nearly, tanh(x) is x.
double SoftCap(double score, double cap) {
  cap = std::max(cap, std::numeric_limits<double>::min());
  const double x = score / cap;
  return std::abs(x) < 0x1p-27 ? score : cap * std::tanh(x);
}
constexpr std::int64_t kPollMultiplyAdds = 1 << 16;
// What a key costs beside its product, in multiply-adds: its rules, the steps of its logit, its exponential.
constexpr std::int64_t kKeyMultiplyAdds = 32;

// Any NaN becomes the canonical quiet one, whatever sign and payload arithmetic gave it.
double Canonical(double value) { return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value; }
float ToFloat(double value) { return static_cast<float>(Canonical(value)); }

// `count` elements, `stride` apart.
void LoadElements(DType dtype, const std::byte* data, std::int64_t count, std::int64_t stride, double* out) {
  const std::int64_t step = stride * ElementBytes(dtype);
  if (dtype == DType::kFloat32) {  // the usual case, without a call for each element
    for (std::int64_t n = 0; n < count; ++n) {
      float value;
      std::memcpy(&value, data + n * step, sizeof(value));
      out[n] = value;
    }
  } else {
    for (std::int64_t n = 0; n < count; ++n) out[n] = LoadAsDouble(dtype, data + n * step);
  }
}

double RotaryPosition(const std::byte* given, std::int64_t index, std::int64_t otherwise) {
  return static_cast<double>(given != nullptr ? LoadInt64(given, index) : otherwise);
}

}  // namespace

// Asks after every kPollMultiplyAdds of work whether to interrupt it, and never before the first piece of a call.
class Reference::Poll {
 public:
  explicit Poll(const Interrupt& interrupt) : interrupt_(interrupt) {}
  // `next`: multiply-adds of the piece that comes now.
  bool Interrupted(std::int64_t next) {
    const bool ask = done_ >= kPollMultiplyAdds;
    if (ask) done_ = 0;
    done_ += next;
    return ask && interrupt_ && interrupt_();
  }

 private:
  const Interrupt& interrupt_;
  std::int64_t done_ = 0;
};

// out = in * W + b. The sum over inputs runs from the first to the last. `row` holds max(in, out) values.
bool Reference::ApplyLinear(const Linear& linear, const double* in, double* out, double* row, Progress& at,
                            Poll& poll) {
  const std::int64_t bytes = ElementBytes(linear.dtype);
  std::int64_t& next = at.matrix_rows;
  if (next == 0) std::fill_n(out, linear.out, 0.0);
  if (linear.transposed) {
    for (; next < linear.out; ++next) {
      if (poll.Interrupted(linear.in)) return false;
      LoadElements(linear.dtype, linear.weight + next * linear.in * bytes, linear.in, 1, row);
      for (std::int64_t m = 0; m < linear.in; ++m) out[next] += in[m] * row[m];
    }
  } else {
    for (; next < linear.in; ++next) {
      if (poll.Interrupted(linear.out)) return false;
      LoadElements(linear.dtype, linear.weight + next * linear.out * bytes, linear.out, 1, row);
      for (std::int64_t n = 0; n < linear.out; ++n) out[n] += in[next] * row[n];
    }
  }
  if (linear.bias_dtype) {
    LoadElements(*linear.bias_dtype, linear.bias, linear.out, 1, row);
    for (std::int64_t n = 0; n < linear.out; ++n) out[n] += row[n];
  }
  next = 0;
  ++at.products;
  return true;
}

// Scratch of one call, cut from the caller's bytes.
struct Reference::RowScratch {
  RowScratch(const Problem& problem, std::byte* scratch)
      : logits(reinterpret_cast<double*>(scratch)),
        query(logits + problem.kv_rows),
        key(query + problem.d_k),
        value(key + problem.d_k),
        sum(value + problem.d_v),
        allowed(reinterpret_cast<bool*>(sum + problem.d_v)) {}
  static std::int64_t Bytes(const Problem& problem) {
    return 8 * (problem.kv_rows + 2 * problem.d_k + 2 * problem.d_v) + problem.kv_rows;
  }
  double* logits;  // [Nk], where allowed; then e^(s - m)
  double* query;   // [d_k]
  double* key;     // [d_k]
  double* value;   // [d_v]
  double* sum;     // [d_v]
  bool* allowed;   // [Nk]
};

Reference::Reference(const Problem& problem) : problem_(problem) {
  const auto make = [&](std::int64_t rows, std::int64_t heads, std::int64_t width) {
    return Tokens{AlignedBuffer<double>(problem.batch * rows * heads * width), rows, heads, width};
  };
  if (problem.projection) {
    projected_[kQ] = make(problem.q_rows, problem.q_heads, problem.d_k);
    projected_[kK] = make(problem.kv_rows, problem.kv_heads, problem.d_k);
    projected_[kV] = make(problem.kv_rows, problem.kv_heads, problem.d_v);
  }
  if (problem.rotary) {
    turned_[kQ] = make(problem.q_rows, problem.q_heads, problem.d_k);
    turned_[kK] = make(problem.kv_rows, problem.kv_heads, problem.d_k);
  }
}

std::int64_t Reference::PreparedBytes(const Problem& problem) {
  const std::int64_t q = problem.batch * problem.q_rows * problem.q_heads * problem.d_k;
  const std::int64_t k = problem.batch * problem.kv_rows * problem.kv_heads * problem.d_k;
  const std::int64_t v = problem.batch * problem.kv_rows * problem.kv_heads * problem.d_v;
  return 8 * ((problem.projection ? q + k + v : 0) + (problem.rotary ? q + k : 0));
}

std::int64_t Reference::ScratchBytes(const Problem& problem) {
  std::int64_t bytes = RowScratch::Bytes(problem);
  if (problem.projection) {
    const Projection& p = *problem.projection;
    std::int64_t widest = std::max({p.d_model, p.q.out, p.k.out, p.v.out});
    if (p.o) widest = std::max({widest, p.o->in, p.o->out});
    bytes = std::max(bytes, 8 * (p.d_model + widest));
  }
  return bytes;
}

std::int64_t Reference::prepare_units() const {
  if (!problem_.projection && !problem_.rotary) return 0;
  return problem_.batch * std::max(problem_.q_rows, problem_.kv_rows);
}

bool Reference::Prepare(std::int64_t unit, std::byte* scratch, Progress& at, const Interrupt& interrupt) {
  const std::int64_t rows = std::max(problem_.q_rows, problem_.kv_rows);
  const std::int64_t b = unit / rows, n = unit % rows;
  if (problem_.projection) {
    const Projection& p = *problem_.projection;
    Poll poll(interrupt);
    double* x = reinterpret_cast<double*>(scratch);
    double* row = x + p.d_model;
    LoadElements(p.x.dtype, p.x.Row(b, 0, n), p.d_model, 1, x);
    const Linear* const linears[] = {&p.q, &p.k, &p.v};
    while (at.products < 3) {
      if (!ApplyLinear(*linears[at.products], x, projected_[at.products].At(b, n, 0), row, at, poll)) return false;
    }
  }
  if (problem_.rotary) {
    if (n < problem_.q_rows) Rotate(kQ, b, n);
    if (n < problem_.kv_len[b]) Rotate(kK, b, n);  // keys beyond are never read
  }
  return true;
}

// Pair t of a row turns by position * base^(-2t / rotary_dim).
void Reference::Rotate(Which which, std::int64_t b, std::int64_t n) {
  const Rotary& rotary = *problem_.rotary;
  const std::int64_t pairs = rotary.rotary_dim / 2;
  const double position = which == kQ
                              ? RotaryPosition(rotary.q_positions, b * problem_.q_rows + n, n + problem_.q_offset[b])
                              : RotaryPosition(rotary.k_positions, b * problem_.kv_rows + n, n);
  const Tokens& turned = turned_[which];
  for (std::int64_t h = 0; h < turned.heads; ++h) {
    double* row = turned.At(b, n, h);
    if (problem_.projection) {
      std::copy_n(projected_[which].At(b, n, h), turned.width, row);
    } else {
      const TensorView& view = which == kQ ? problem_.q : problem_.k;
      LoadElements(view.dtype, view.Row(b, h, n), turned.width, view.stride[3], row);
    }
  }
  for (std::int64_t t = 0; t < pairs; ++t) {
    const double angle =
        position * std::pow(rotary.base, -2.0 * static_cast<double>(t) / static_cast<double>(rotary.rotary_dim));
    const double cosine = std::cos(angle), sine = std::sin(angle);
    const bool half = rotary.style == RotaryStyle::kHalf;
    const std::int64_t first = half ? t : 2 * t, second = half ? t + pairs : 2 * t + 1;
    for (std::int64_t h = 0; h < turned.heads; ++h) {
      double* row = turned.At(b, n, h);
      const double a = row[first], c = row[second];
      row[first] = a * cosine - c * sine;
      row[second] = c * cosine + a * sine;
    }
  }
}

void Reference::LoadRow(Which which, std::int64_t b, std::int64_t h, std::int64_t n, double* out) const {
  if (problem_.rotary && which != kV) {
    std::copy_n(turned_[which].At(b, n, h), turned_[which].width, out);
  } else if (problem_.projection) {
    std::copy_n(projected_[which].At(b, n, h), projected_[which].width, out);
  } else {
    const TensorView& view = which == kQ ? problem_.q : which == kK ? problem_.k : problem_.v;
    LoadElements(view.dtype, view.Row(b, h, n), view.shape[3], view.stride[3], out);
  }
}

const double* Reference::Projected(OutputKind kind, std::int64_t b, std::int64_t h, std::int64_t n) const {
  return projected_[kind == OutputKind::kProjectedQ ? kQ : kind == OutputKind::kProjectedK ? kK : kV].At(b, n, h);
}

bool Reference::ProjectOut(const double* heads, double* out, std::byte* scratch, Progress& at,
                           const Interrupt& interrupt) const {
  Poll poll(interrupt);
  const Linear& linear = *problem_.projection->o;
  if (!ApplyLinear(linear, heads, out, reinterpret_cast<double*>(scratch), at, poll)) return false;
  for (std::int64_t n = 0; n < linear.out; ++n) out[n] = Canonical(out[n]);
  return true;
}

bool Reference::Row(std::int64_t b, std::int64_t h, std::int64_t i, const ReferenceRow& row, std::byte* scratch_bytes,
                    Progress& at, const Interrupt& interrupt) const {
  RowScratch scratch(problem_, scratch_bytes);
  Poll poll(interrupt);
  if (!ClearRow(row, at, poll)) return false;
  if (i >= problem_.q_len[b]) return true;
  return ScoreKeys(b, h, i, row, scratch, at, poll) && WeighValues(b, h, i, row, scratch, at, poll);
}

bool Reference::ClearRow(const ReferenceRow& row, Progress& at, Poll& poll) const {
  constexpr std::int64_t kKeysTogether = 4096;
  for (; at.cleared < problem_.kv_rows; at.cleared += kKeysTogether) {
    if (poll.Interrupted(kKeysTogether)) return false;
    const std::int64_t keys = std::min(kKeysTogether, problem_.kv_rows - at.cleared);
    for (float* scores : row.scores) {
      if (scores != nullptr) std::fill_n(scores + at.cleared, keys, -std::numeric_limits<float>::infinity());
    }
    if (row.weights != nullptr) std::fill_n(row.weights + at.cleared, keys, 0.0f);
  }
  if (row.output != nullptr) std::fill_n(row.output, problem_.d_v, 0.0);
  if (row.lse != nullptr) *row.lse = -kInfinity;
  return true;
}

bool Reference::ScoreKeys(std::int64_t b, std::int64_t h, std::int64_t i, const ReferenceRow& row, RowScratch& scratch,
                          Progress& at, Poll& poll) const {
  const Problem& p = problem_;
  const std::int64_t kv_head = h / (p.q_heads / p.kv_heads);
  const double position = static_cast<double>(i + p.q_offset[b]);
  LoadRow(kQ, b, h, i, scratch.query);
  const Problem::KeyRange range = p.VisibleKeys(b, i);
  for (at.scored = std::max(at.scored, range.first); at.scored < range.end; ++at.scored) {
    if (poll.Interrupted(p.d_k + kKeyMultiplyAdds)) return false;
    const std::int64_t j = at.scored;
    // What excludes a key is looked at before the key is.
    scratch.allowed[j] = false;
    if (p.mask && p.mask->Row(b, h, i)[j * p.mask->stride[3]] == std::byte{0}) continue;
    double bias = 0;
    if (p.bias) {
      bias = LoadAsDouble(p.bias->dtype, p.bias->Row(b, h, i) + j * p.bias->stride[3] * ElementBytes(p.bias->dtype));
      if (bias == -kInfinity) continue;
    }
    scratch.allowed[j] = true;
    ++at.allowed;

    LoadRow(kK, b, kv_head, j, scratch.key);
    double dot = 0;
    for (std::int64_t t = 0; t < p.d_k; ++t) dot += scratch.query[t] * scratch.key[t];
    const double scaled = p.scale * dot;
    const double capped = p.softcap ? SoftCap(scaled, *p.softcap) : scaled;
    double logit = capped;
    if (!p.alibi_slopes.empty()) {
      logit -= static_cast<double>(p.alibi_slopes[h]) * std::abs(position - static_cast<double>(j));
    }
    if (p.bias) logit += bias;
    scratch.logits[j] = logit;
    const double steps[4] = {dot, scaled, capped, logit};
    for (int step = 0; step < 4; ++step) {
      if (row.scores[step] != nullptr) row.scores[step][j] = ToFloat(steps[step]);
    }
    if (std::isnan(logit) || logit > at.maximum) at.maximum = logit;  // nothing is over NaN: it stays
  }
  return true;
}

bool Reference::WeighValues(std::int64_t b, std::int64_t h, std::int64_t i, const ReferenceRow& row,
                            RowScratch& scratch, Progress& at, Poll& poll) const {
  const Problem& p = problem_;
  const std::int64_t kv_head = h / (p.q_heads / p.kv_heads);
  const double sink = p.sinks.empty() ? -kInfinity : static_cast<double>(p.sinks[h]);
  // Decided by counting and not by the maximum: allowed logits may all be -inf, and that is a NaN row.
  if (at.allowed == 0) {
    if (row.lse != nullptr) *row.lse = sink;
    return true;
  }
  const double maximum = sink > at.maximum ? sink : at.maximum;
  const Problem::KeyRange range = p.VisibleKeys(b, i);
  if (at.weighed <= range.first) std::fill_n(scratch.sum, p.d_v, 0.0);
  for (at.weighed = std::max(at.weighed, range.first); at.weighed < range.end; ++at.weighed) {
    if (poll.Interrupted(p.d_v + kKeyMultiplyAdds)) return false;
    const std::int64_t j = at.weighed;
    if (!scratch.allowed[j]) continue;
    const double weight = std::exp(scratch.logits[j] - maximum);
    scratch.logits[j] = weight;
    at.total += weight;
    if (row.output == nullptr) continue;
    LoadRow(kV, b, kv_head, j, scratch.value);
    for (std::int64_t t = 0; t < p.d_v; ++t) scratch.sum[t] += weight * scratch.value[t];
  }
  const double total = sink > -kInfinity ? at.total + std::exp(sink - maximum) : at.total;

  if (row.lse != nullptr) *row.lse = Canonical(maximum + std::log(total));
  for (std::int64_t t = 0; row.output != nullptr && t < p.d_v; ++t) row.output[t] = Canonical(scratch.sum[t] / total);
  if (row.weights == nullptr) return true;
  for (at.divided = std::max(at.divided, range.first); at.divided < range.end; ++at.divided) {
    if (poll.Interrupted(kKeyMultiplyAdds)) return false;
    if (scratch.allowed[at.divided]) row.weights[at.divided] = ToFloat(scratch.logits[at.divided] / total);
  }
  return true;
}

}  // namespace attnd
