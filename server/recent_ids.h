// The last problem ids that were closed on a stream: what a peer still sends for them is no news.
// Thread rule: one owner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace attnd::server {

// Eight bytes an id: a thousand streams remember 2 MiB of them. Looking through them costs less than a message.
class RecentIds {
 public:
  static constexpr std::size_t kKept = 256;

  void Add(std::uint64_t id) {
    if (Contains(id)) return;
    if (ids_.size() < kKept) {
      ids_.push_back(id);
    } else {
      ids_[oldest_] = id;
      oldest_ = (oldest_ + 1) % kKept;
    }
  }

  // The id is open again.
  void Remove(std::uint64_t id) {
    const auto found = std::find(ids_.begin(), ids_.end(), id);
    if (found == ids_.end()) return;
    std::rotate(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(oldest_), ids_.end());
    oldest_ = 0;
    std::erase(ids_, id);
  }

  bool Contains(std::uint64_t id) const { return std::find(ids_.begin(), ids_.end(), id) != ids_.end(); }

 private:
  std::vector<std::uint64_t> ids_;  // the oldest first, from oldest_ on
  std::size_t oldest_ = 0;          // 0 until kKept are known
};

}  // namespace attnd::server
