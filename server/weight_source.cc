#include "server/weight_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

constexpr std::size_t kReadBytes = 1 << 20;
constexpr std::uint64_t kFirstBytes = 8;  // which say how long the header is
constexpr std::pair<absl::string_view, DType> kTypes[] = {
    {"F32", DType::kFloat32}, {"F16", DType::kFloat16}, {"BF16", DType::kBFloat16}};

absl::Status Unreadable(const std::string& name, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat(name, ": ", why));
}

}  // namespace

Descriptor::~Descriptor() {
  if (is_open()) close(number_);
}

absl::string_view SafetensorsName(DType dtype) {
  for (const auto& [name, known] : kTypes) {
    if (known == dtype) return name;
  }
  return {};
}

absl::StatusOr<WeightSource> WeightSource::Open(const Descriptor& folder, const std::string& name) {
  WeightSource source;
  source.name_ = name;
  source.file_ = Descriptor(openat(folder.number(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!source.file_.is_open()) return Unreadable(name, std::strerror(errno));
  struct stat about {};
  if (fstat(source.file_.number(), &about) != 0) return Unreadable(name, std::strerror(errno));
  if (!S_ISREG(about.st_mode)) return absl::InvalidArgumentError(absl::StrCat(name, ": not a file"));
  const auto file_bytes = static_cast<std::uint64_t>(about.st_size);
  std::string start(std::min(kFirstBytes, file_bytes), '\0');
  if (absl::Status status = source.ReadAt(0, start.size(), start.data()); !status.ok()) return status;
  const absl::StatusOr<std::uint64_t> data_offset = SafetensorsDataOffset(name, start, file_bytes);
  if (!data_offset.ok()) return data_offset.status();
  start.resize(*data_offset);
  if (absl::Status status = source.ReadAt(0, start.size(), start.data()); !status.ok()) return status;
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(name, start, file_bytes);
  if (!header.ok()) return header.status();
  source.header_ = *std::move(header);
  return source;
}

absl::StatusOr<InputTensor> WeightSource::Describe(const SafetensorsTensor& tensor) const {
  for (const auto& [name, dtype] : kTypes) {
    if (name == tensor.dtype) return InputTensor{dtype, tensor.shape};
  }
  return absl::InvalidArgumentError(absl::StrCat(name_, ": tensor ", QuotedName(tensor.name), " has dtype ",
                                                 QuotedName(tensor.dtype), ", expected F32, F16 or BF16"));
}

absl::Status WeightSource::Read(const SafetensorsTensor& tensor,
                                absl::FunctionRef<void(absl::string_view part)> take) const {
  std::vector<char> buffer(std::min<std::uint64_t>(kReadBytes, tensor.end - tensor.begin));
  for (std::uint64_t at = tensor.begin; at < tensor.end;) {
    const std::size_t bytes = std::min<std::uint64_t>(buffer.size(), tensor.end - at);
    if (absl::Status status = ReadAt(header_.data_offset + at, bytes, buffer.data()); !status.ok()) return status;
    take({buffer.data(), bytes});
    at += bytes;
  }
  return absl::OkStatus();
}

absl::Status WeightSource::ReadAt(std::uint64_t offset, std::size_t bytes, char* to) const {
  while (bytes > 0) {
    const ssize_t came = pread(file_.number(), to, bytes, static_cast<off_t>(offset));
    if (came < 0 && errno == EINTR) continue;
    if (came < 0) return Unreadable(name_, std::strerror(errno));
    if (came == 0) return Unreadable(name_, "it became shorter while it was read");
    offset += static_cast<std::uint64_t>(came);
    bytes -= static_cast<std::size_t>(came);
    to += came;
  }
  return absl::OkStatus();
}

}  // namespace attnd::server
