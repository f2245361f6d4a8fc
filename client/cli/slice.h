// Some rows of one head of a problem as a problem of their own: with the same meaning, asked in the server's float64
// reference mode. Rows keep their positions, which need not be neighbours: causal frontier, window, lengths and mask
// become one bool mask, ALiBi and bias one float64 bias, pages one array; nothing is rounded on the way. Thread rule:
// pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/problem.h"

namespace attnd::client {

// A tensor of a request seen as [B, H, N, d], whatever its layout or broadcast.
struct TensorRead {
  const v1::Tensor* tensor = nullptr;
  std::int64_t shape[4] = {0, 0, 0, 0};
  std::int64_t stride[4] = {0, 0, 0, 0};  // elements; in pages: from page to page, then within a page
  const v1::Tensor* page_table = nullptr;
  std::int64_t page_rows = 0;

  // Of q by the request's layout.
  static TensorRead Heads(const v1::Tensor& tensor, v1::Layout layout);
  // Of k or v: through the page table where there is one.
  static TensorRead Keys(const v1::Tensor& tensor, const v1::Options& options);
  // Of mask or bias, from the right.
  static TensorRead Broadcast(const v1::Tensor& tensor);
  // NaN where the table names no page.
  double At(std::int64_t b, std::int64_t h, std::int64_t n, std::int64_t c) const;
};

// What bounds a row's rounding errors: see Tolerance.
struct RowBound {
  double a = 0;          // largest of |scale| sum|q||k| + |bias| + slope |p - j| over allowed keys
  double value_max = 0;  // max |V| over allowed keys
  bool beyond = false;   // the row lies beyond q_len: it is zero by definition
};

// Most that a float32 output may differ from the float64 formula, and a weight (value_max = 1): 8 * 2^-24 * (4 + A) *
// max|V|.
double Tolerance(double a, double value_max);

struct RowSlice {
  Problem problem;               // q [1,1,rows,d_k], float64, reference mode, weights wanted
  std::vector<RowBound> bounds;  // one a row
};

// `rows` of head `h` of sequence `b`; `q_offset` are the values that the server used. UNIMPLEMENTED for x and rotary,
// which cannot be cut this way.
absl::StatusOr<RowSlice> SliceRows(const Problem& whole, std::int64_t b, std::int64_t h,
                                   const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& q_offset);

}  // namespace attnd::client
