#include "server/block_sink.h"

#include <algorithm>
#include <utility>

#include "server/wire/encode.h"

namespace attnd::server {

std::vector<BlockSlice> SliceBlock(const RowBlock& block, std::int64_t block_bytes) {
  std::vector<BlockSlice> slices;
  const std::int64_t element = ElementBytes(block.dtype);
  const std::int64_t row_bytes = block.columns * element;
  if (row_bytes == 0) return slices;
  if (row_bytes <= block_bytes) {
    const std::int64_t rows_each = block_bytes / row_bytes;
    for (std::int64_t row = 0; row < block.rows; row += rows_each) {
      const std::int64_t rows = std::min(rows_each, block.rows - row);
      slices.push_back({block.first_row + row, rows, 0, block.columns, row * row_bytes, rows * row_bytes});
    }
    return slices;
  }
  const std::int64_t columns_each = std::max<std::int64_t>(block_bytes / element, 1);
  for (std::int64_t row = 0; row < block.rows; ++row) {
    for (std::int64_t column = 0; column < block.columns; column += columns_each) {
      const std::int64_t columns = std::min(columns_each, block.columns - column);
      slices.push_back(
          {block.first_row + row, 1, column, columns, row * row_bytes + column * element, columns * element});
    }
  }
  return slices;
}

RowSpan BlockSink::Open(const RowBlock& block) {
  const std::int64_t stride_bytes = block.columns * ElementBytes(block.dtype);
  auto buffer = std::make_shared<AlignedBuffer<std::byte>>(block.rows * stride_bytes);
  std::byte* data = buffer->data();
  const std::lock_guard lock(mutex_);
  open_[data] = std::move(buffer);
  return {data, stride_bytes};
}

void BlockSink::Close(const RowBlock& block, RowSpan span) {
  std::shared_ptr<AlignedBuffer<std::byte>> buffer;
  {
    const std::lock_guard lock(mutex_);
    buffer = std::move(open_.extract(span.data).mapped());
  }
  v1::Block head;
  head.set_kind(ToWire(block.kind));
  head.set_dtype(ToWire(block.dtype));
  head.set_batch(block.batch);
  head.set_head(block.head);
  for (const BlockSlice& slice : SliceBlock(block, block_bytes_)) {
    head.set_first_row(slice.first_row);
    head.set_rows(slice.rows);
    head.set_first_column(slice.first_column);
    head.set_columns(slice.columns);
    bytes_written_ += slice.bytes;
    writer_.WriteBlock(EncodeBlock(problem_id_, head, {buffer, span.data + slice.offset_bytes, slice.bytes}));
  }
}

void BlockSink::Drop(const RowBlock&, RowSpan span) {
  const std::lock_guard lock(mutex_);
  open_.erase(span.data);
}

}  // namespace attnd::server
