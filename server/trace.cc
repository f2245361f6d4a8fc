#include "server/trace.h"

#include <algorithm>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace attnd::server {
namespace {

constexpr std::size_t kRequestIdBytesMax = 128;

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

bool IsZero(absl::string_view text) { return text.find_first_not_of('0') == absl::string_view::npos; }

}  // namespace

std::string RequestIdFrom(absl::string_view came) {
  if (!came.empty() && came.size() <= kRequestIdBytesMax &&
      std::all_of(came.begin(), came.end(), absl::ascii_isgraph)) {
    return std::string(came);
  }
  thread_local absl::BitGen random;
  return absl::StrFormat("%016x", absl::Uniform<std::uint64_t>(random));
}

bool IsTraceparent(absl::string_view text) {
  if (text.size() < 55 || text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
  const absl::string_view version = text.substr(0, 2), trace = text.substr(3, 32), parent = text.substr(36, 16),
                          flags = text.substr(53, 2);
  if (!IsHex(version) || !IsHex(trace) || !IsHex(parent) || !IsHex(flags) || IsZero(trace) || IsZero(parent))
    return false;
  if (version == "ff") return false;
  // Later versions may add fields; version 00 has none.
  return text.size() == 55 || (version != "00" && text[55] == '-' && text.size() <= 256 &&
                               std::all_of(text.begin(), text.end(), absl::ascii_isgraph));
}

}  // namespace attnd::server
