// Where finished rows go. Thread rule: sinks are called from worker threads, several at once for different rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/problem.h"
#include "core/tensor.h"

namespace attnd {

// Rows [first_row, first_row + rows) of all `columns` of one output. Blocks of one output never overlap and cover it.
struct RowBlock {
  OutputKind kind = OutputKind::kOutput;
  DType dtype = DType::kFloat32;
  std::int64_t batch = 0, head = 0, first_row = 0, rows = 0, columns = 0;
};

struct RowSpan {
  std::byte* data = nullptr;
  std::int64_t stride_bytes = 0;  // from one row to the next
};

// Takes finished rows.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // Room for the block's rows, valid until Close.
  virtual RowSpan Open(const RowBlock& block) = 0;
  // The rows are written.
  virtual void Close(const RowBlock& block, RowSpan span) = 0;
  // Instead of Close when the work was stopped: the rows are unfinished and must not be shown to anyone.
  virtual void Drop(const RowBlock& block, RowSpan span) = 0;
  // False holds back new units that write; call Executor::Wake when it turns true again.
  virtual bool HasRoom() { return true; }
};

// Dense tensors in reply order, for whoever wants the whole answer in memory.
class DenseSink : public RowSink {
 public:
  // `allocate` gives ElementBytes * product(ReplyShape) bytes for each wanted kind; called in the constructor only.
  DenseSink(const Problem& problem, const std::function<std::byte*(OutputKind kind, std::int64_t bytes)>& allocate);
  RowSpan Open(const RowBlock& block) override;
  void Close(const RowBlock&, RowSpan) override {}
  void Drop(const RowBlock&, RowSpan) override {}

 private:
  struct Target {
    std::byte* data = nullptr;
    std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;  // bytes
  };
  Target targets_[kOutputKindCount];
};

}  // namespace attnd
