// Numbers and tables as people read them.
// Thread rule: pure functions; a Table belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "absl/strings/string_view.h"

namespace attnd::client {

// Columns on a terminal: UTF-8 characters, not bytes. (No wide or combining characters are ours.)
std::size_t Width(absl::string_view text);

// Shortest of up to six significant digits: 0.5, 1, 0.0123457.
std::string Short(double value);
// Fixed digits after the point.
std::string Fixed(double value, int digits);
// 2147483648 -> "2.15e9"; below 100000 as it is.
std::string HumanCount(double value);
// 67108864 -> "64 MiB".
std::string HumanBytes(double bytes);
// Microseconds -> "85.3 ms".
std::string HumanMicroseconds(double us);

// Aligned columns. The first is aligned left, the others right, unless `left` says so.
class Table {
 public:
  explicit Table(std::vector<bool> left = {true}) : left_(std::move(left)) {}
  void Row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Each line begins with `indent` spaces; no line ends with any.
  std::string Text(std::size_t indent = 0) const;

 private:
  std::vector<bool> left_;  // by column; false beyond the end
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace attnd::client
