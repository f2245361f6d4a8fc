#include "server/store_budget.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

constexpr std::size_t kNameBytesMax = 64;

bool IsNameByte(char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '.' || c == '_' || c == '-'; }

}  // namespace

absl::Status CheckStoredName(absl::string_view field, absl::string_view name) {
  if (!name.empty() && name.size() <= kNameBytesMax && std::all_of(name.begin(), name.end(), IsNameByte)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(field, ": \"", absl::CEscape(name.substr(0, kNameBytesMax)), "\" of ",
                                                 name.size(), " bytes, expected 1 to ", kNameBytesMax,
                                                 " of a-z, 0-9, '.', '_' and '-'"));
}

absl::StatusOr<StoreBytes> StoreBudget::Take(absl::string_view owner, absl::string_view what, std::int64_t bytes) {
  if (bytes > bytes_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": ", bytes, " bytes needed, ", bytes_max_, " allowed (store_bytes_max)"));
  }
  Reservation reservation(budget_.AccountOf(absl::StrCat("stored by ", owner)));
  if (absl::Status status = reservation.GrowTo(what, bytes); !status.ok()) return status;
  std::int64_t used = *used_;
  do {
    if (bytes > bytes_max_ - used) {
      return WithRetryDelay(
          absl::ResourceExhaustedError(absl::StrCat(what, ": ", bytes, " bytes needed, ", used, " of ", bytes_max_,
                                                    " taken now (store_bytes_max)")),
          kRetryDelay);
    }
  } while (!used_->compare_exchange_weak(used, used + bytes));
  return StoreBytes(std::move(reservation), used_);
}

}  // namespace attnd::server
