// Which requests run now, and which of the last minutes took longest: what /statusz shows and what in-flight metrics
// count. Thread rule: every function from any thread; a Row has one owner and the table outlives it.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/request_record.h"

namespace attnd::server {

enum class Stage { kReceiving, kComputing, kSending };  // kComputing: or waiting for it
absl::string_view StageName(Stage stage);

struct RunningRequest {
  absl::string_view method;  // lives for ever
  std::string peer, identity, shape;
  Stage stage = Stage::kReceiving;
  absl::Time began;
};

struct EndedRequest {
  RequestRecord record;
  absl::Time ended;
};

class RequestTable {
 public:
  // One running request, until it is destroyed.
  class Row {
   public:
    Row() = default;
    Row(RequestTable& table, absl::string_view method, std::string peer, std::string identity);
    Row(Row&& other) noexcept;
    Row& operator=(Row&& other) noexcept;
    ~Row() { Leave(); }

    void SetShape(std::string shape);
    void SetStage(Stage stage);
    void Leave();

   private:
    RequestTable* table_ = nullptr;
    std::list<RunningRequest>::iterator place_;
  };

  // At its end.
  void Ended(const RequestRecord& record, absl::Time now);

  // Those that began first, at most `most`.
  std::vector<RunningRequest> Running(std::size_t most) const;
  std::int64_t CountRunning(absl::string_view method) const;

  // Of the last ten minutes, the slowest first.
  std::vector<EndedRequest> Slowest(absl::Time now) const;

 private:
  mutable std::mutex mutex_;
  std::list<RunningRequest> running_;  // in the order they began
  std::vector<EndedRequest> slowest_;
};

}  // namespace attnd::server
