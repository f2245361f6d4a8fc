#include "client/join.h"

#include "absl/strings/str_cat.h"

namespace attnd::client {

namespace {

// [first, first + count) lies in [0, size).
bool Inside(std::int64_t first, std::int64_t count, std::int64_t size) {
  return first >= 0 && count > 0 && first < size && count <= size - first;
}

}  // namespace

absl::StatusOr<BlockPlace> BlockPlacer::Place(const v1::Block& block, std::int64_t data_bytes) {
  const auto dtype = static_cast<DType>(block.dtype());
  if (!problem_.Wants(block.kind()) || block.dtype() < v1::DATA_TYPE_FLOAT32 || block.dtype() > v1::DATA_TYPE_FLOAT64) {
    return absl::InternalError(absl::StrCat("the server sent a block of output kind ", block.kind(), " and dtype ",
                                            block.dtype(), ", which was not asked for"));
  }
  auto found = outputs_.find(block.kind());
  if (found == outputs_.end()) {
    absl::StatusOr<OutputLayout> layout = problem_.LayoutOf(block.kind());
    if (!layout.ok()) return layout.status();
    found = outputs_.emplace(block.kind(), Progress{*std::move(layout), dtype, 0}).first;
  }
  Progress& progress = found->second;
  const OutputLayout& layout = progress.layout;
  const std::int64_t element = ElementBytes(dtype);
  if (dtype != progress.dtype || !Inside(block.batch(), 1, layout.batch) || !Inside(block.head(), 1, layout.heads) ||
      !Inside(block.first_row(), block.rows(), layout.rows) ||
      !Inside(block.first_column(), block.columns(), layout.columns) || data_bytes % (block.columns() * element) != 0 ||
      data_bytes / (block.columns() * element) != block.rows()) {
    return absl::InternalError(
        absl::StrCat("the server sent a block that does not fit ", Name(block.kind()), " ", ShapeText(layout.shape)));
  }
  progress.elements += block.rows() * block.columns();
  const std::int64_t first = block.batch() * layout.batch_stride + block.head() * layout.head_stride +
                             block.first_row() * layout.row_stride + block.first_column();
  return BlockPlace{&layout, dtype, first, layout.row_stride};
}

absl::Status BlockPlacer::CheckComplete(const v1::ProblemClosing& closing) const {
  int wanted = 1 + problem_.request().outputs_size();
  for (const v1::OutputShape& output : closing.outputs()) {
    const auto found = outputs_.find(output.kind());
    const std::int64_t placed = found == outputs_.end() ? 0 : found->second.elements;
    const absl::StatusOr<OutputLayout> layout = problem_.LayoutOf(output.kind());
    if (!layout.ok()) return layout.status();
    if (placed != layout->elements ||
        (found != outputs_.end() && static_cast<int>(found->second.dtype) != output.dtype())) {
      return absl::InternalError(absl::StrCat("the server closed the problem after ", placed, " of the ",
                                              layout->elements, " elements of ", Name(output.kind())));
    }
    --wanted;
  }
  if (wanted != 0) return absl::InternalError("the server closed the problem without all outputs that were asked for");
  return absl::OkStatus();
}

}  // namespace attnd::client
