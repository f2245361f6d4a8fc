#include "client/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/file.h"
#include "client/npy.h"

namespace attnd::client {

namespace {

constexpr std::uint32_t kLocalMagic = 0x04034b50;
constexpr std::uint32_t kEntryMagic = 0x02014b50;
constexpr std::uint32_t kEndMagic = 0x06054b50;
constexpr std::uint32_t kEnd64Magic = 0x06064b50;
constexpr std::uint32_t kLocator64Magic = 0x07064b50;
constexpr std::uint64_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr std::uint64_t kCommentBytesMax = 65535;
constexpr std::uint64_t kMembersMax = 65536;
// Deflate cannot expand a byte into more than this.
constexpr std::uint64_t kDeflateRatioMax = 1032;
constexpr std::uint32_t kMethodStored = 0, kMethodDeflated = 8;
constexpr std::uint32_t kFlagEncrypted = 1;

// Little-endian numbers at a place that the caller has checked.
template <typename T>
T Get(const std::string& bytes, std::uint64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

bool Inside(std::uint64_t at, std::uint64_t count, std::uint64_t end) { return at <= end && count <= end - at; }

}  // namespace

absl::Status NpzFile::Bad(absl::string_view why) const {
  return absl::InvalidArgumentError(absl::StrCat(name_, ": ", why));
}

absl::StatusOr<NpzFile> NpzFile::Open(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  return Parse(path, *std::move(bytes));
}

absl::StatusOr<NpzFile> NpzFile::Parse(absl::string_view name, std::string bytes) {
  NpzFile file;
  file.name_ = std::string(name);
  file.bytes_ = std::move(bytes);
  const absl::Status status = file.ReadDirectory();
  if (!status.ok()) return status;
  return file;
}

absl::Status NpzFile::ReadDirectory() {
  const std::uint64_t size = bytes_.size();
  if (size < kEndBytes) return Bad("is not a .npz file (shorter than the end of a zip archive)");
  // The end record is the last thing but a comment: the nearest magic from the back.
  const std::uint64_t first = size - kEndBytes - std::min(kCommentBytesMax, size - kEndBytes);
  std::uint64_t end = size - kEndBytes;
  while (Get<std::uint32_t>(bytes_, end) != kEndMagic) {
    if (end == first) return Bad("is not a .npz file (no end of a zip archive)");
    --end;
  }
  std::uint64_t count = Get<std::uint16_t>(bytes_, end + 10);
  std::uint64_t directory_bytes = Get<std::uint32_t>(bytes_, end + 12);
  std::uint64_t directory = Get<std::uint32_t>(bytes_, end + 16);
  if (Get<std::uint16_t>(bytes_, end + 4) != Get<std::uint16_t>(bytes_, end + 6))
    return Bad("is part of a split archive");
  if (end >= kLocator64Bytes && Get<std::uint32_t>(bytes_, end - kLocator64Bytes) == kLocator64Magic) {
    const auto end64 = Get<std::uint64_t>(bytes_, end - kLocator64Bytes + 8);
    if (!Inside(end64, kEnd64Bytes, size) || Get<std::uint32_t>(bytes_, end64) != kEnd64Magic) {
      return Bad("its zip64 locator points at no zip64 end");
    }
    count = Get<std::uint64_t>(bytes_, end64 + 32);
    directory_bytes = Get<std::uint64_t>(bytes_, end64 + 40);
    directory = Get<std::uint64_t>(bytes_, end64 + 48);
  }
  if (!Inside(directory, directory_bytes, end)) return Bad("its zip directory lies outside the file (cut short?)");
  if (count > kMembersMax) return Bad(absl::StrCat("has ", count, " members, at most ", kMembersMax, " are read"));
  std::uint64_t at = directory;
  for (std::uint64_t i = 0; i < count; ++i) {
    const absl::Status status = ReadEntry(&at, directory + directory_bytes);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status NpzFile::ReadEntry(std::uint64_t* at, std::uint64_t end) {
  if (!Inside(*at, kEntryBytes, end) || Get<std::uint32_t>(bytes_, *at) != kEntryMagic) {
    return Bad("its zip directory is damaged");
  }
  Member member;
  member.flags = Get<std::uint16_t>(bytes_, *at + 8);
  member.method = Get<std::uint16_t>(bytes_, *at + 10);
  member.crc = Get<std::uint32_t>(bytes_, *at + 16);
  member.packed_bytes = Get<std::uint32_t>(bytes_, *at + 20);
  member.bytes = Get<std::uint32_t>(bytes_, *at + 24);
  const std::uint64_t name_bytes = Get<std::uint16_t>(bytes_, *at + 28);
  const std::uint64_t extra_bytes = Get<std::uint16_t>(bytes_, *at + 30);
  const std::uint64_t comment_bytes = Get<std::uint16_t>(bytes_, *at + 32);
  member.local_offset = Get<std::uint32_t>(bytes_, *at + 42);
  if (!Inside(*at, kEntryBytes + name_bytes + extra_bytes + comment_bytes, end))
    return Bad("its zip directory is damaged");
  member.name = bytes_.substr(*at + kEntryBytes, name_bytes);
  // Extra fields: id:u16 size:u16 data. Id 1 holds the 64-bit values of those fields above that are all ones, in this
  // order.
  std::uint64_t extra = *at + kEntryBytes + name_bytes;
  const std::uint64_t extra_end = extra + extra_bytes;
  while (Inside(extra, 4, extra_end)) {
    const auto id = Get<std::uint16_t>(bytes_, extra);
    const std::uint64_t field_end = extra + 4 + Get<std::uint16_t>(bytes_, extra + 2);
    if (field_end > extra_end) return Bad("its zip directory is damaged");
    std::uint64_t value = extra + 4;
    for (std::uint64_t* field : {&member.bytes, &member.packed_bytes, &member.local_offset}) {
      if (id == 1 && *field == std::numeric_limits<std::uint32_t>::max() && Inside(value, 8, field_end)) {
        *field = Get<std::uint64_t>(bytes_, value);
        value += 8;
      }
    }
    extra = field_end;
  }
  *at = extra_end + comment_bytes;
  members_.push_back(std::move(member));
  return absl::OkStatus();
}

std::vector<std::string> NpzFile::names() const {
  std::vector<std::string> names;
  for (const Member& member : members_) {
    if (absl::EndsWith(member.name, ".npy")) names.emplace_back(absl::StripSuffix(member.name, ".npy"));
  }
  return names;
}

absl::StatusOr<std::string> NpzFile::Unpack(const Member& member) const {
  const std::string label = absl::StrCat("member '", absl::CEscape(member.name), "' ");
  if ((member.flags & kFlagEncrypted) != 0) return Bad(absl::StrCat(label, "is encrypted"));
  if (!Inside(member.local_offset, kLocalBytes, bytes_.size()) ||
      Get<std::uint32_t>(bytes_, member.local_offset) != kLocalMagic) {
    return Bad(absl::StrCat(label, "is not where the zip directory says"));
  }
  const std::uint64_t data = member.local_offset + kLocalBytes + Get<std::uint16_t>(bytes_, member.local_offset + 26) +
                             Get<std::uint16_t>(bytes_, member.local_offset + 28);
  if (!Inside(data, member.packed_bytes, bytes_.size())) return Bad(absl::StrCat(label, "is cut short"));
  std::string unpacked;
  if (member.method == kMethodStored) {
    if (member.bytes != member.packed_bytes) return Bad(absl::StrCat(label, "is stored with two different sizes"));
    unpacked = bytes_.substr(data, member.bytes);
  } else if (member.method == kMethodDeflated) {
    if (member.bytes / kDeflateRatioMax > member.packed_bytes) {
      return Bad(absl::StrCat(label, "promises ", member.bytes, " bytes from ", member.packed_bytes,
                              ", more than deflate can hold"));
    }
    unpacked.resize(member.bytes);
    z_stream stream{};
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return absl::ResourceExhaustedError("zlib has no memory");
    // zlib counts in 32 bits: both sides are handed over in parts.
    constexpr std::uint64_t kPartMax = 1U << 30;
    std::uint64_t in_left = member.packed_bytes, out_left = member.bytes;
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes_.data() + data));
    stream.next_out = reinterpret_cast<Bytef*>(unpacked.data());
    int result = Z_OK;
    while (result == Z_OK) {
      const auto in_part = static_cast<uInt>(std::min(in_left, kPartMax));
      const auto out_part = static_cast<uInt>(std::min(out_left, kPartMax));
      stream.avail_in = in_part;
      stream.avail_out = out_part;
      result = inflate(&stream, Z_NO_FLUSH);
      in_left -= in_part - stream.avail_in;
      out_left -= out_part - stream.avail_out;
      if (result == Z_BUF_ERROR || (stream.avail_in == in_part && stream.avail_out == out_part)) break;
    }
    inflateEnd(&stream);
    if (result != Z_STREAM_END || in_left != 0 || out_left != 0) {
      return Bad(
          absl::StrCat(label, "does not inflate to the ", member.bytes, " bytes that the zip directory promises"));
    }
  } else {
    return Bad(absl::StrCat(label, "is packed by method ", member.method, ", expected 0 (stored) or 8 (deflated)"));
  }
  if (crc32_z(0, reinterpret_cast<const Bytef*>(unpacked.data()), unpacked.size()) != member.crc) {
    return Bad(absl::StrCat(label, "is damaged (its CRC-32 differs)"));
  }
  return unpacked;
}

absl::StatusOr<Array> NpzFile::Load(absl::string_view name) const {
  for (const Member& member : members_) {
    if (member.name != absl::StrCat(name, ".npy")) continue;
    absl::StatusOr<std::string> unpacked = Unpack(member);
    if (!unpacked.ok()) return unpacked.status();
    return ParseNpy(absl::StrCat(name_, "[", name, "]"), *std::move(unpacked));
  }
  return absl::NotFoundError(absl::StrCat(name_, ": no array '", name, "', it holds ", absl::StrJoin(names(), ", ")));
}

}  // namespace attnd::client
