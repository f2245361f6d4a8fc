// Which bytes of a tensor came: pieces in any order, each byte exactly once.
// Thread rule: one owner.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"

namespace attnd::server {

class ByteCover {
 public:
  explicit ByteCover(std::int64_t bytes) : bytes_(bytes) {}

  // Takes [offset, offset + length). INVALID_ARGUMENT when it is empty, reaches outside or meets a byte that came
  // before; RESOURCE_EXHAUSTED when the pieces leave more than kGapsMax gaps.
  absl::Status Add(std::int64_t offset, std::int64_t length);

  std::int64_t bytes() const { return bytes_; }
  std::int64_t came() const { return came_; }
  bool complete() const { return came_ == bytes_; }
  // Bytes from the first on without a gap.
  std::int64_t prefix() const { return !runs_.empty() && runs_.begin()->first == 0 ? runs_.begin()->second : 0; }

  static constexpr int kGapsMax = 1024;

 private:
  const std::int64_t bytes_;
  std::int64_t came_ = 0;
  std::map<std::int64_t, std::int64_t> runs_;  // begin -> end, disjoint, never touching
};

}  // namespace attnd::server
