#include "server/request_table.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"

namespace attnd::server {
namespace {

constexpr std::size_t kSlowestMax = 20;
constexpr absl::Duration kRecent = absl::Minutes(10);

}  // namespace

absl::string_view StageName(Stage stage) {
  switch (stage) {
    case Stage::kReceiving: return "receives";
    case Stage::kComputing: return "waits or computes";
    case Stage::kSending: return "sends";
  }
  return "";
}

RequestTable::Row::Row(RequestTable& table, absl::string_view method, std::string peer, std::string identity)
    : table_(&table) {
  RunningRequest request{method, std::move(peer), std::move(identity), "", Stage::kReceiving, Now()};
  const std::lock_guard lock(table.mutex_);
  place_ = table.running_.insert(table.running_.end(), std::move(request));
}

RequestTable::Row::Row(Row&& other) noexcept : table_(std::exchange(other.table_, nullptr)), place_(other.place_) {}

RequestTable::Row& RequestTable::Row::operator=(Row&& other) noexcept {
  std::swap(table_, other.table_);
  std::swap(place_, other.place_);
  return *this;
}

void RequestTable::Row::SetShape(std::string shape) {
  if (table_ == nullptr) return;
  const std::lock_guard lock(table_->mutex_);
  place_->shape = std::move(shape);
}

void RequestTable::Row::SetStage(Stage stage) {
  if (table_ == nullptr) return;
  const std::lock_guard lock(table_->mutex_);
  place_->stage = stage;
}

void RequestTable::Row::Leave() {
  if (table_ == nullptr) return;
  const std::lock_guard lock(table_->mutex_);
  table_->running_.erase(place_);
  table_ = nullptr;
}

void RequestTable::Ended(const RequestRecord& record, absl::Time now) {
  const std::lock_guard lock(mutex_);
  std::erase_if(slowest_, [now](const EndedRequest& old) { return now - old.ended > kRecent; });
  if (slowest_.size() < kSlowestMax) {
    slowest_.push_back({record, now});
    return;
  }
  const auto quickest =
      std::min_element(slowest_.begin(), slowest_.end(),
                       [](const EndedRequest& a, const EndedRequest& b) { return a.record.total < b.record.total; });
  if (quickest->record.total < record.total) *quickest = {record, now};
}

std::vector<RunningRequest> RequestTable::Running(std::size_t most) const {
  const std::lock_guard lock(mutex_);
  const auto count = static_cast<std::ptrdiff_t>(std::min(most, running_.size()));
  return {running_.begin(), std::next(running_.begin(), count)};
}

std::int64_t RequestTable::CountRunning(absl::string_view method) const {
  const std::lock_guard lock(mutex_);
  return std::count_if(running_.begin(), running_.end(),
                       [method](const RunningRequest& request) { return request.method == method; });
}

std::vector<EndedRequest> RequestTable::Slowest(absl::Time now) const {
  std::vector<EndedRequest> slowest;
  {
    const std::lock_guard lock(mutex_);
    slowest = slowest_;
  }
  std::erase_if(slowest, [now](const EndedRequest& old) { return now - old.ended > kRecent; });
  std::sort(slowest.begin(), slowest.end(),
            [](const EndedRequest& a, const EndedRequest& b) { return a.record.total > b.record.total; });
  return slowest;
}

}  // namespace attnd::server
