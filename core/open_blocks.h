// Blocks of a sink that a unit fills. What it does not close, since it was stopped, is dropped when the unit ends.
// Thread rule: one owner; no locks.
#pragma once

#include <cstddef>

#include "core/row_sink.h"

namespace attnd {

class OpenBlocks {
 public:
  explicit OpenBlocks(RowSink& sink) : sink_(sink) {}
  ~OpenBlocks() {
    for (; closed_ < count_; ++closed_) sink_.Drop(blocks_[closed_], spans_[closed_]);
  }
  OpenBlocks(const OpenBlocks&) = delete;
  OpenBlocks& operator=(const OpenBlocks&) = delete;

  // At most one block of each kind.
  RowSpan Open(const RowBlock& block) {
    const RowSpan span = sink_.Open(block);
    blocks_[count_] = block;
    spans_[count_] = span;
    ++count_;
    return span;
  }
  // All of them, in the order they were opened.
  void Close() {
    while (closed_ < count_) {
      const std::size_t n = closed_++;
      sink_.Close(blocks_[n], spans_[n]);
    }
  }

  // In the order they were opened.
  std::size_t count() const { return count_; }
  const RowBlock& block(std::size_t n) const { return blocks_[n]; }
  const RowSpan& span(std::size_t n) const { return spans_[n]; }

 private:
  RowSink& sink_;
  RowBlock blocks_[kOutputKindCount];
  RowSpan spans_[kOutputKindCount];
  std::size_t count_ = 0, closed_ = 0;
};

}  // namespace attnd
