#include "server/weight_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/clock.h"
#include "server/log.h"
#include "server/reloaded_files.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(1);
constexpr absl::Duration kRefusedPeriod = absl::Seconds(5);  // after which what was refused is tried again
constexpr char kPut[] = "put";
constexpr absl::string_view kManifestEnd = ".json", kPutEnd = ".safetensors", kTemporaryEnd = ".tmp";
// In a put file's metadata.
constexpr char kManifestKey[] = "attnd.weight_set", kOwnerKey[] = "attnd.owner";
constexpr std::size_t kWriteBytes = 8 << 20;

Descriptor OpenFolder(int at, const char* path) {
  return Descriptor(openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// Of a folder, in order. UNAVAILABLE.
absl::StatusOr<std::vector<std::string>> NamesIn(const Descriptor& folder) {
  const int again = openat(folder.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = again < 0 ? nullptr : fdopendir(again);
  if (listing == nullptr) return absl::UnavailableError(std::strerror(errno));
  const absl::Cleanup close_it = [listing] { closedir(listing); };
  std::vector<std::string> names;
  while (const dirent* const entry = readdir(listing)) names.emplace_back(entry->d_name);
  std::sort(names.begin(), names.end());
  return names;
}

// What the system said, of a step of writing.
absl::Status NotWritten(absl::string_view step) {
  const int error = errno;
  const std::string text = absl::StrCat("weights_dir: ", step, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

absl::Status WriteAll(int file, const char* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t written = write(file, bytes, std::min(count, kWriteBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return NotWritten("write");
    bytes += written;
    count -= static_cast<std::size_t>(written);
  }
  return absl::OkStatus();
}

std::string PutName(std::int64_t number) { return absl::StrCat(number, kPutEnd); }

}  // namespace

absl::Status WeightFiles::Start() {
  if (folder_.empty()) return absl::OkStatus();
  dir_ = OpenFolder(AT_FDCWD, folder_.c_str());
  if (!dir_.is_open()) return absl::InvalidArgumentError(absl::StrCat(folder_, ": ", std::strerror(errno)));
  const bool made = mkdirat(dir_.number(), kPut, 0700) == 0 || errno == EEXIST;
  if (made) put_dir_ = OpenFolder(dir_.number(), kPut);
  if (put_dir_.is_open() && fsync(dir_.number()) == 0) {
    LoadPuts();
  } else {
    put_status_ = NotWritten(kPut);
    Log(LogLevel::kWarning, "weight sets cannot be put", {{"error", std::string(put_status_.message())}});
  }
  LookForChanges();
  return absl::OkStatus();
}

void WeightFiles::Tick(absl::Time now) {
  if (folder_.empty() || (now >= looked_at_ && now - looked_at_ < kPeriod) || looking_.exchange(true)) return;
  looked_at_ = now;
  Do([this] {
    LookForChanges();
    looking_ = false;
  });
}

void WeightFiles::Note(const std::string& file, const absl::StatusOr<WeightSetHead>& loaded) {
  if (loaded.ok()) {
    ++loads_;
    Log(LogLevel::kInfo, "weight set loaded",
        {{"file", file}, {"name", loaded->name}, {"version", loaded->version}, {"owner", loaded->owner}});
  } else {
    ++refusals_;
    Log(LogLevel::kWarning, "weight set refused; what was live goes on",
        {{"file", file}, {"error", std::string(loaded.status().message())}});
  }
}

absl::StatusOr<std::shared_ptr<WeightSet>> WeightFiles::Load(WeightManifest manifest,
                                                             const std::vector<WeightSource>& sources) const {
  struct Place {
    const WeightSource* source = nullptr;
    const SafetensorsTensor* tensor = nullptr;
  };
  std::map<absl::string_view, Place> places;
  for (const auto& [role, member] : kProjectionTensors) {
    const auto wanted = manifest.tensors.find(std::string(role));
    if (wanted == manifest.tensors.end()) continue;
    Place& place = places[role];
    for (const WeightSource& source : sources) {
      const SafetensorsTensor* const tensor = source.header().Find(wanted->second);
      if (tensor == nullptr) continue;
      if (place.tensor != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat("manifest.tensors.", role, ": ", QuotedName(wanted->second),
                                                       " is in ", place.source->name(), " and in ", source.name()));
      }
      place = {&source, tensor};
    }
    if (place.tensor == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("manifest.tensors.", role, ": ", QuotedName(wanted->second),
                                                     " is in none of the manifest's files"));
    }
    absl::StatusOr<InputTensor> described = place.source->Describe(*place.tensor);
    if (!described.ok()) return described.status();
    manifest.projection.*member = *std::move(described);
  }
  absl::StatusOr<std::shared_ptr<WeightSet>> set =
      sets_.Make(std::move(manifest.head), manifest.projection, std::move(manifest.rotary));
  if (!set.ok()) return set.status();
  for (const auto& [role, member] : kProjectionTensors) {
    const auto place = places.find(role);
    if (place == places.end()) continue;
    FormWriter writer = WriterOf(**set, manifest.projection, role, member);
    absl::Status status =
        place->second.source->Read(*place->second.tensor, [&writer](absl::string_view part) { writer.Append(part); });
    if (!status.ok()) return status;
  }
  return set;
}

absl::StatusOr<WeightSetHead> WeightFiles::LoadManifest(const std::string& name) {
  const absl::StatusOr<std::string> text = ReadSmallFile(absl::StrCat(folder_, "/", name));
  if (!text.ok()) return text.status();
  absl::StatusOr<WeightManifest> manifest = ParseManifest(*text);
  if (!manifest.ok()) return manifest.status();
  manifest->head.from_file = true;
  const WeightSetHead head = manifest->head;
  if (const std::string* const other = ManifestOf(head); other != nullptr && *other != name) {
    return absl::AlreadyExistsError(absl::StrCat("manifest.version: ", Describe(head), " is that of ", *other));
  }
  std::vector<WeightSource> sources;
  for (const std::string& file : manifest->files) {
    absl::StatusOr<WeightSource> source = WeightSource::Open(dir_, file);
    if (!source.ok()) return source.status();
    sources.push_back(*std::move(source));
  }
  absl::StatusOr<std::shared_ptr<WeightSet>> set = Load(*std::move(manifest), sources);
  if (!set.ok()) return set.status();
  sets_.Publish(*std::move(set));
  return head;
}

void WeightFiles::LookForChanges() {
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(dir_);
  if (!names.ok()) return;  // the folder is out of reach: what was live goes on
  std::map<std::string, Manifest> gone = std::move(manifests_);
  manifests_.clear();
  // What has not changed stands before what has: two manifests may not say the same set.
  std::vector<std::pair<std::string, Version>> changed;
  for (const std::string& name : *names) {
    struct stat about {};
    if (!absl::EndsWith(name, kManifestEnd) || fstatat(dir_.number(), name.c_str(), &about, 0) != 0) continue;
    const Version version = {about.st_dev, about.st_ino, about.st_size,
                             absl::ToUnixNanos(absl::TimeFromTimespec(about.st_mtim)),
                             absl::ToUnixNanos(absl::TimeFromTimespec(about.st_ctim))};
    if (const auto known = gone.find(name); known != gone.end()) {
      const Manifest& manifest = known->second;
      const bool try_again = !manifest.refusal.empty() && Now() - manifest.tried_at >= kRefusedPeriod;
      if (manifest.read != version || try_again) changed.emplace_back(name, version);
      manifests_.insert(gone.extract(known));
    } else {
      changed.emplace_back(name, version);
    }
  }
  for (const auto& [name, version] : changed) {
    absl::StatusOr<WeightSetHead> loaded = CatchBadAlloc([&, &name = name] { return LoadManifest(name); });
    Manifest& manifest = manifests_[name];
    const bool is_new = manifest.read != version;
    manifest.read = version;
    manifest.tried_at = Now();
    const std::string refusal = loaded.ok() ? "" : std::string(loaded.status().message());
    if (is_new || manifest.refusal != refusal) Note(name, loaded);
    manifest.refusal = refusal;
    if (!loaded.ok()) continue;
    if (const std::optional<WeightSetHead> before = std::exchange(manifest.live, *std::move(loaded)); before) {
      RemoveUnlessLive(*before);
    }
  }
  for (const auto& [name, manifest] : gone) {
    if (manifest.live) RemoveUnlessLive(*manifest.live);
  }
}

const std::string* WeightFiles::ManifestOf(const WeightSetHead& head) const {
  for (const auto& [name, manifest] : manifests_) {
    if (manifest.live && manifest.live->name == head.name && manifest.live->version == head.version) return &name;
  }
  return nullptr;
}

void WeightFiles::RemoveUnlessLive(const WeightSetHead& head) {
  if (ManifestOf(head) != nullptr) return;
  sets_.Remove(head);
  Log(LogLevel::kInfo, "weight set removed: no manifest says it any more",
      {{"name", head.name}, {"version", head.version}});
}

void WeightFiles::LoadPuts() {
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(put_dir_);
  if (!names.ok()) return Note(kPut, names.status());
  std::map<std::int64_t, std::string> files;  // in the order in which they were put
  for (const std::string& name : *names) {
    absl::string_view stem = name;
    std::int64_t number = 0;
    if (absl::ConsumeSuffix(&stem, kTemporaryEnd)) unlinkat(put_dir_.number(), name.c_str(), 0);
    if (absl::ConsumeSuffix(&stem, kPutEnd) && absl::SimpleAtoi(stem, &number) && PutName(number) == name) {
      files[number] = name;
    }
  }
  for (const auto& [number, name] : files) {
    Note(absl::StrCat(kPut, "/", name),
         CatchBadAlloc([&, &name = name, number = number] { return LoadPut(name, number); }));
  }
  if (!files.empty()) next_number_ = files.rbegin()->first + 1;
}

absl::StatusOr<WeightSetHead> WeightFiles::LoadPut(const std::string& name, std::int64_t number) {
  absl::StatusOr<WeightSource> source = WeightSource::Open(put_dir_, name);
  if (!source.ok()) return source.status();
  const std::map<std::string, std::string>& metadata = source->header().metadata;
  const auto text = metadata.find(kManifestKey), owner = metadata.find(kOwnerKey);
  if (text == metadata.end() || owner == metadata.end()) {
    return absl::InvalidArgumentError(absl::StrCat("metadata: without ", kManifestKey, " or ", kOwnerKey));
  }
  absl::StatusOr<WeightManifest> manifest = ParseManifest(text->second);
  if (!manifest.ok()) return manifest.status();
  manifest->head.owner = owner->second;
  WeightSetHead head = manifest->head;
  std::vector<WeightSource> sources;
  sources.push_back(*std::move(source));
  absl::StatusOr<std::shared_ptr<WeightSet>> set = Load(*std::move(manifest), sources);
  if (!set.ok()) return set.status();
  sets_.Publish(*std::move(set));
  numbers_[{head.name, head.version}] = number;
  return head;
}

absl::Status WeightFiles::Save(const WeightSet& set) {
  if (folder_.empty()) return absl::OkStatus();
  if (!put_dir_.is_open()) return put_status_;
  const std::int64_t number = next_number_++;
  const std::string temporary = absl::StrCat(number, kTemporaryEnd), name = PutName(number);
  absl::Status status = Write(temporary, set);
  if (status.ok() && renameat(put_dir_.number(), temporary.c_str(), put_dir_.number(), name.c_str()) != 0) {
    status = NotWritten("rename");
  }
  if (status.ok() && fsync(put_dir_.number()) != 0) status = NotWritten("fsync of the folder");
  if (!status.ok()) {
    for (const std::string& file : {temporary, name}) unlinkat(put_dir_.number(), file.c_str(), 0);
    return status;
  }
  numbers_[{set.head.name, set.head.version}] = number;
  return absl::OkStatus();
}

absl::Status WeightFiles::Write(const std::string& temporary, const WeightSet& set) const {
  std::vector<SafetensorsTensor> tensors;
  std::uint64_t at = 0;
  for (const auto& [role, member] : kProjectionTensors) {
    const std::optional<InputTensor>& tensor = set.projection.*member;
    if (!tensor) continue;
    const std::uint64_t end = at + static_cast<std::uint64_t>(TensorBytes(*tensor));
    tensors.push_back({std::string(role), std::string(SafetensorsName(tensor->dtype)), tensor->shape, at, end});
    at = end;
  }
  const std::string header =
      WriteSafetensorsHeader(tensors, {{kManifestKey, WriteManifest(set)}, {kOwnerKey, set.head.owner}});
  const Descriptor file(
      openat(put_dir_.number(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open()) return NotWritten("open");
  absl::Status status = WriteAll(file.number(), header.data(), header.size());
  for (const SafetensorsTensor& tensor : tensors) {
    if (!status.ok()) return status;
    const AlignedBuffer<std::byte>& buffer = set.buffers.at(tensor.name);
    status =
        WriteAll(file.number(), reinterpret_cast<const char*>(buffer.data()), static_cast<std::size_t>(buffer.count()));
  }
  if (status.ok() && fsync(file.number()) != 0) status = NotWritten("fsync");
  return status;
}

absl::Status WeightFiles::Erase(const WeightSetHead& head) {
  const auto number = numbers_.find({head.name, head.version});
  if (number == numbers_.end()) return absl::OkStatus();
  if (unlinkat(put_dir_.number(), PutName(number->second).c_str(), 0) != 0 && errno != ENOENT) {
    return NotWritten("unlink");
  }
  if (fsync(put_dir_.number()) != 0) return NotWritten("fsync of the folder");
  numbers_.erase(number);
  return absl::OkStatus();
}

}  // namespace attnd::server
