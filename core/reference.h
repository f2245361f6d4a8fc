// The formula in float64 and the plainest loops, for every option: the oracle that fast paths are compared with, and
// the mode that explains an answer step by step. One row at a time, in the order of the formula:
//
//   s = scale * (q . k);  s = cap * tanh(s / cap);  s -= slope * |p - j|;  s += bias;  excluded keys are left out;
//   m = max s (and sink);  l = sum e^(s - m) + e^(sink - m);  O = sum e^(s - m) v / l;  W = e^(s - m) / l;  LSE = m +
//   ln l
//
// A call that is interrupted goes on later where it was, with the same operations in the same order. Thread rule:
// Prepare may run at the same time for different units; when every unit is done, the const functions may run at the
// same time. Each call brings its own scratch.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "core/buffer.h"
#include "core/problem.h"

namespace attnd {

// Where one row goes. Null where not wanted. Every entry is written: excluded keys have weight 0 and scores of -inf.
struct ReferenceRow {
  double* output = nullptr;  // [d_v]
  float* weights = nullptr;  // [Nk]
  double* lse = nullptr;     // one value
  float* scores[4] = {};     // [Nk] each: dot, scaled, capped, biased
};

class Reference {
 public:
  // Asked every few hundred microseconds. True makes the call return false with its results unfinished; called again
  // with the same progress, scratch and targets, it goes on.
  using Interrupt = std::function<bool()>;

  // How far a call came: one of these a call, new at first. Each loop has its own count, so that those that ended pass.
  struct Progress {
    // Of Row: keys.
    std::int64_t cleared = 0, scored = 0, weighed = 0, divided = 0;
    std::int64_t allowed = 0;                                   // of those scored
    double maximum = -std::numeric_limits<double>::infinity();  // of the allowed logits
    double total = 0;                                           // of the weights
    // Of Prepare and ProjectOut: whole products, and rows of the next one's matrix.
    std::int64_t products = 0, matrix_rows = 0;
  };

  // Allocates PreparedBytes. The problem must outlive it, and have its data by the first Prepare or Row.
  explicit Reference(const Problem& problem);

  // Bytes of projected and turned q, k and v.
  static std::int64_t PreparedBytes(const Problem& problem);
  // Bytes of scratch for any call; grows with Nk.
  static std::int64_t ScratchBytes(const Problem& problem);

  // Projections with their biases, then rotary embedding: one unit a token. 0 when there is nothing to prepare.
  std::int64_t prepare_units() const;
  bool Prepare(std::int64_t unit, std::byte* scratch, Progress& at, const Interrupt& interrupt);

  // Row i of head h of sequence b.
  bool Row(std::int64_t b, std::int64_t h, std::int64_t i, const ReferenceRow& row, std::byte* scratch, Progress& at,
           const Interrupt& interrupt) const;

  // out = heads * W_O + b_O for one token. heads: [Hq * d_v]; out: [d_out].
  bool ProjectOut(const double* heads, double* out, std::byte* scratch, Progress& at, const Interrupt& interrupt) const;

  // One head's row of projected q, k or v, before rotary: [d_k] or [d_v].
  const double* Projected(OutputKind kind, std::int64_t b, std::int64_t h, std::int64_t n) const;

 private:
  // Prepared rows of one of q, k, v: [B, N, H, d].
  struct Tokens {
    AlignedBuffer<double> values;
    std::int64_t rows = 0, heads = 0, width = 0;
    double* At(std::int64_t b, std::int64_t n, std::int64_t h) const {
      return values.data() + ((b * rows + n) * heads + h) * width;
    }
  };
  enum Which { kQ, kK, kV };
  class Poll;
  struct RowScratch;
  // What an excluded key leaves, for all of them. This and those below: false when interrupted.
  bool ClearRow(const ReferenceRow& row, Progress& at, Poll& poll) const;
  // Fills logits and the row's scores.
  bool ScoreKeys(std::int64_t b, std::int64_t h, std::int64_t i, const ReferenceRow& row, RowScratch& scratch,
                 Progress& at, Poll& poll) const;
  // W = (e^(s - m)) / l and O = W v from the logits.
  bool WeighValues(std::int64_t b, std::int64_t h, std::int64_t i, const ReferenceRow& row, RowScratch& scratch,
                   Progress& at, Poll& poll) const;
  static bool ApplyLinear(const Linear& linear, const double* in, double* out, double* row, Progress& at, Poll& poll);
  void LoadRow(Which which, std::int64_t b, std::int64_t h, std::int64_t n, double* out) const;
  void Rotate(Which which, std::int64_t b, std::int64_t n);

  const Problem& problem_;
  Tokens projected_[3];  // with x
  Tokens turned_[2];     // q and k, with rotary
};

}  // namespace attnd
