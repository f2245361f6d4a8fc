// Blocks of an answer put where they belong.
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include "absl/strings/string_view.h"

#include "absl/status/status.h"
#include "client/problem.h"

namespace attnd::client {

// Where a part of an output's row goes.
struct Placed {
  std::int64_t offset_bytes = 0;
  absl::string_view bytes;
};

// Knows each output's layout from the problem and checks every block against it. A block that does not fit is INTERNAL:
// it comes from a server.
class BlockPlacer {
 public:
  explicit BlockPlacer(const Problem& problem) : problem_(problem) {}

  // Calls `place` for each run of bytes of the block that is contiguous in the dense tensor.
  absl::Status Place(const v1::Block& block,
                     const std::function<absl::Status(const OutputLayout&, DType, Placed)>& place);

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
