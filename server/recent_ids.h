// The last problem ids that were closed on a stream: what a peer still sends for them is no news.
// Thread rule: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>

namespace attnd::server {

class RecentIds {
 public:
  static constexpr std::size_t kKept = 1024;

  void Add(std::uint64_t id) {
    if (!known_.insert(id).second) return;
    order_.push_back(id);
    if (order_.size() <= kKept) return;
    known_.erase(order_.front());
    order_.pop_front();
  }

  // The id is open again.
  void Remove(std::uint64_t id) {
    if (known_.erase(id) > 0) std::erase(order_, id);
  }

  bool Contains(std::uint64_t id) const { return known_.contains(id); }

 private:
  std::deque<std::uint64_t> order_;
  std::unordered_set<std::uint64_t> known_;
};

}  // namespace attnd::server
