// Weight sets as files, and the thread on which sets change.
//
//   weights_dir/NAME.json            the operator's manifests (weight_manifest.h), with the safetensors files they name
//   weights_dir/put/NUMBER.safetensors   one set each that a caller put, its manifest and owner in the file's metadata
//   weights_dir/put/NUMBER.tmp       one that is being written; removed at start
//
// Manifests are read at start and when one appears, changes or goes: its set then goes live, in one step, or goes. What
// does not hold up is refused, in the log and the metrics, and nothing else changes; it is tried again every 5 s, since
// a file that it names may come to an end, and room may be made, and told again only where the reason is another. A put
// file is written whole or not at all: to a temporary name, to the disk, renamed, and the folder to the disk. Its
// number is ours: nothing that a caller says becomes a path. Files are read by pread, since a mapping would die of one
// that is cut short.
// Thread rule: Start before anything else; Do, Tick and the counts from any thread; Save and Erase from what Do runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/sender.h"
#include "server/stall_watch.h"
#include "server/weight_manifest.h"
#include "server/weight_sets.h"
#include "server/weight_source.h"

namespace attnd::server {

class WeightFiles final : public Watched {
 public:
  // `folder`: weights_dir; empty: sets live in memory only.
  WeightFiles(WeightSets& sets, std::string folder) : sets_(sets), folder_(std::move(folder)) {}

  // Loads what is there. INVALID_ARGUMENT: there is no such folder.
  absl::Status Start();

  void Tick(absl::Time now) override;

  // Runs `change` on the thread of changes, in the order asked.
  void Do(std::function<void()> change) { thread_.Later(std::move(change)); }

  // Returns when the set is on the disk, or was not to be there. RESOURCE_EXHAUSTED when the disk is full, UNAVAILABLE;
  // then nothing of it is left.
  absl::Status Save(const WeightSet& set);
  // Returns when it is gone from the disk, or was not there. UNAVAILABLE.
  absl::Status Erase(const WeightSetHead& head);

  // Manifests and put files that went live, and that were refused.
  std::int64_t loads() const { return loads_; }
  std::int64_t refusals() const { return refusals_; }

 private:
  // By which a change of a file is seen.
  using Version = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::int64_t, std::int64_t>;
  struct Manifest {
    Version read;
    std::optional<WeightSetHead> live;
    std::string refusal;  // of what was read last; empty: none
    absl::Time tried_at;
  };

  absl::StatusOr<std::shared_ptr<WeightSet>> Load(WeightManifest manifest,
                                                  const std::vector<WeightSource>& sources) const;
  absl::StatusOr<WeightSetHead> LoadManifest(const std::string& name);
  absl::StatusOr<WeightSetHead> LoadPut(const std::string& name, std::int64_t number);
  void LoadPuts();
  void LookForChanges();
  // Whose set is live; null: no manifest's.
  const std::string* ManifestOf(const WeightSetHead& head) const;
  void RemoveUnlessLive(const WeightSetHead& head);
  // Its line in the log, and its count.
  void Note(const std::string& file, const absl::StatusOr<WeightSetHead>& loaded);
  absl::Status Write(const std::string& temporary, const WeightSet& set) const;

  WeightSets& sets_;
  const std::string folder_;
  std::atomic<std::int64_t> loads_{0}, refusals_{0};
  std::atomic<bool> looking_{false};
  absl::Time looked_at_;  // Tick's

  // Of the thread of changes, and Start's before.
  Descriptor dir_, put_dir_;
  absl::Status put_status_;  // why there is no put_dir_
  std::map<std::string, Manifest> manifests_;
  std::map<std::pair<std::string, std::int64_t>, std::int64_t> numbers_;  // of put files, by name and version
  std::int64_t next_number_ = 1;

  Sender thread_;  // ends before what it works on
};

}  // namespace attnd::server
