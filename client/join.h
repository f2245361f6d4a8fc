// Blocks of an answer put where they belong.
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/problem.h"

namespace attnd::client {

// Where a block's rows go in the dense tensor; in elements.
struct BlockPlace {
  const OutputLayout* layout = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t first = 0, row_stride = 0;
};

// Knows each output's layout from the problem and checks every block against it. A block that does not fit is INTERNAL:
// it comes from a server.
class BlockPlacer {
 public:
  explicit BlockPlacer(const Problem& problem) : problem_(problem) {}

  // `block` came with `data_bytes` bytes of data, whatever it says itself.
  absl::StatusOr<BlockPlace> Place(const v1::Block& block, std::int64_t data_bytes);

  // After the closing message: every output it lists is there in full, and no other.
  absl::Status CheckComplete(const v1::ProblemClosing& closing) const;

 private:
  struct Progress {
    OutputLayout layout;
    DType dtype = DType::kFloat32;
    std::int64_t elements = 0;  // placed so far
  };
  const Problem& problem_;
  std::map<v1::OutputKind, Progress> outputs_;
};

}  // namespace attnd::client
