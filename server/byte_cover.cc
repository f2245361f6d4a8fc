#include "server/byte_cover.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace attnd::server {

absl::Status ByteCover::Add(std::int64_t offset, std::int64_t length) {
  if (length <= 0) return absl::InvalidArgumentError("an empty piece, expected at least one byte");
  if (offset < 0 || offset > bytes_ || length > bytes_ - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece of ", length, " bytes at ", offset, ", expected to lie within ", bytes_, " bytes"));
  }
  std::int64_t begin = offset, end = offset + length;
  auto next = runs_.lower_bound(begin);
  const auto before = next == runs_.begin() ? runs_.end() : std::prev(next);
  if ((next != runs_.end() && next->first < end) || (before != runs_.end() && before->second > begin)) {
    return absl::InvalidArgumentError(absl::StrCat("a piece of ", length, " bytes at ", offset,
                                                   " repeats bytes that came before, expected each once"));
  }
  came_ += length;
  if (before != runs_.end() && before->second == begin) {
    begin = before->first;
    runs_.erase(before);
  }
  if (next != runs_.end() && next->first == end) {
    end = next->second;
    runs_.erase(next);
  }
  runs_[begin] = end;
  if (runs_.size() > kGapsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("pieces leave ", runs_.size(), " gaps, allowed ", kGapsMax));
  }
  return absl::OkStatus();
}

}  // namespace attnd::server
