#include "client/cli/text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace attnd::client {

std::size_t Width(absl::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string Short(double value) { return absl::StrFormat("%.6g", value); }

std::string Fixed(double value, int digits) {
  if (!std::isfinite(value)) return Short(value);
  std::string text = absl::StrFormat("%.*f", digits, value);
  // What rounds to zero has no sign.
  if (text[0] == '-' && text.find_first_of("123456789") == std::string::npos) text.erase(0, 1);
  return text;
}

std::string HumanCount(double value) {
  if (std::fabs(value) < 100000) return absl::StrFormat("%.6g", value);
  return absl::StrReplaceAll(absl::StrFormat("%.2e", value), {{"e+0", "e"}, {"e+", "e"}});
}

std::string HumanBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  while (std::fabs(bytes) >= 1024 && unit < 6) {
    bytes /= 1024;
    ++unit;
  }
  return bytes < 1000 ? absl::StrFormat("%.3g %s", bytes, kUnits[unit])
                      : absl::StrFormat("%.0f %s", bytes, kUnits[unit]);
}

std::string HumanMicroseconds(double us) {
  if (us < 1000) return absl::StrFormat("%.3g us", us);
  if (us < 1e6) return absl::StrFormat("%.3g ms", us / 1e3);
  if (us < 6e7) return absl::StrFormat("%.3g s", us / 1e6);
  if (us < 3.6e9) return absl::StrFormat("%.3g min", us / 6e7);
  return absl::StrFormat("%.4g h", us / 3.6e9);
}

std::string Table::Text(std::size_t indent) const {
  std::vector<std::size_t> widths;
  for (const std::vector<std::string>& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], Width(row[c]));
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line(indent, ' ');
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - Width(row[c]), ' ');
      const bool left = c < left_.size() && left_[c];
      absl::StrAppend(&line, c == 0 ? "" : "  ", left ? row[c] : padding, left ? padding : row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace attnd::client
