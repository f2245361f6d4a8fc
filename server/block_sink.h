// Rows of one problem on a stream -> blocks of at most block_bytes, without a copy.
// Thread rule: Open and Close from workers, several at once.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/buffer.h"
#include "core/row_sink.h"

namespace attnd::server {

// Where encoded blocks go. It takes as many as come, and says when it would rather not have more.
class BlockWriter {
 public:
  virtual ~BlockWriter() = default;
  virtual void WriteBlock(grpc::ByteBuffer message) = 0;
  // Called under the pool's lock: must not take one of its own.
  virtual bool HasRoom() const = 0;
};

// A part of a RowBlock that one message carries.
struct BlockSlice {
  std::int64_t first_row = 0, rows = 0, first_column = 0, columns = 0;
  std::int64_t offset_bytes = 0, bytes = 0;  // within the RowBlock's dense rows
};

// Several rows a slice where they fit; a row of more than block_bytes is split by columns. In order, without gaps.
std::vector<BlockSlice> SliceBlock(const RowBlock& block, std::int64_t block_bytes);

class BlockSink final : public RowSink {
 public:
  BlockSink(std::uint64_t problem_id, std::int64_t block_bytes, BlockWriter& writer)
      : problem_id_(problem_id), block_bytes_(block_bytes), writer_(writer) {}

  RowSpan Open(const RowBlock& block) override;
  void Close(const RowBlock& block, RowSpan span) override;
  void Drop(const RowBlock& block, RowSpan span) override;
  bool HasRoom() override { return writer_.HasRoom(); }

  // Tensor bytes handed to the writer so far.
  std::int64_t bytes_written() const { return bytes_written_; }

 private:
  const std::uint64_t problem_id_;
  const std::int64_t block_bytes_;
  BlockWriter& writer_;
  std::atomic<std::int64_t> bytes_written_{0};
  std::mutex mutex_;
  std::unordered_map<const std::byte*, std::shared_ptr<AlignedBuffer<std::byte>>> open_;  // being filled
};

}  // namespace attnd::server
