#include "core/row_sink.h"

#include <array>

namespace attnd {

DenseSink::DenseSink(const Problem& problem,
                     const std::function<std::byte*(OutputKind kind, std::int64_t bytes)>& allocate) {
  for (int number = 1; number < kOutputKindCount; ++number) {
    const auto kind = static_cast<OutputKind>(number);
    if (!problem.Wants(kind)) continue;
    const std::array<std::int64_t, 4> shape = problem.OutputShape(kind);
    const std::int64_t row_bytes = shape[3] * ElementBytes(problem.OutputDType(kind));
    Target& target = targets_[number];
    target.data = allocate(kind, shape[0] * shape[1] * shape[2] * row_bytes);
    target.batch_stride = shape[1] * shape[2] * row_bytes;
    const bool rows_first = kind == OutputKind::kOutput && problem.layout == Layout::kBNHD;
    target.head_stride = rows_first ? row_bytes : shape[2] * row_bytes;
    target.row_stride = rows_first ? shape[1] * row_bytes : row_bytes;
  }
}

RowSpan DenseSink::Open(const RowBlock& block) {
  const Target& target = targets_[static_cast<int>(block.kind)];
  return {target.data + block.batch * target.batch_stride + block.head * target.head_stride +
              block.first_row * target.row_stride,
          target.row_stride};
}

}  // namespace attnd
