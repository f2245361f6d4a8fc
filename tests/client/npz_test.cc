#include "client/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "client/file.h"

namespace attnd::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Files that NumPy wrote: see tests/client/data/make.py.
std::string Data(const std::string& name) { return absl::StrCat(ATTND_SOURCE_DIR, "/tests/client/data/", name); }

TEST(NpzTest, ReadsStoredDeflatedPipedAndZip64) {
  for (const char* name : {"stored.npz", "deflated.npz", "piped.npz", "zip64.npz"}) {
    const absl::StatusOr<NpzFile> file = NpzFile::Open(Data(name));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_THAT(file->names(), ElementsAre("q", "Mask", "empty"));
    const absl::StatusOr<Array> q = file->Load("q"), mask = file->Load("Mask"), empty = file->Load("empty");
    ASSERT_TRUE(q.ok() && mask.ok() && empty.ok()) << name << q.status() << mask.status() << empty.status();
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(q->At(i), (i - 5) / 4.0) << name;
      EXPECT_EQ(mask->At(i), i % 3 == 0 ? 1 : 0) << name;
    }
    EXPECT_EQ(empty->shape, (std::vector<std::int64_t>{0, 3}));
    EXPECT_THAT(std::string(file->Load("k").status().message()), HasSubstr("no array 'k', it holds q, Mask, empty"));
  }
}

TEST(NpzTest, NoCutOfAGoodFileIsTakenForAFile) {
  for (const char* name : {"stored.npz", "zip64.npz"}) {
    const std::string whole = *ReadFile(Data(name));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(NpzFile::Parse("cut", whole.substr(0, size)).ok()) << name << " cut at " << size;
    }
  }
}

// Every byte of the file set to other values: whatever is read as an array is the right array or another header's, and
// nothing outside the file is touched (which the sanitizer build sees).
TEST(NpzTest, NoChangedByteBringsWrongNumbers) {
  for (const char* name : {"deflated.npz", "zip64.npz"}) {
    const std::string whole = *ReadFile(Data(name));
    const std::string right = NpzFile::Parse("whole", whole)->Load("q")->bytes;
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (const char value : {'\0', '\x7f', '\xff', static_cast<char>(whole[at] ^ 1)}) {
        std::string changed = whole;
        changed[at] = value;
        const absl::StatusOr<NpzFile> file = NpzFile::Parse("changed", changed);
        if (!file.ok()) continue;
        const absl::StatusOr<Array> q = file->Load("q");
        if (q.ok()) {
          EXPECT_EQ(q->bytes, right) << name << " byte " << at;
        }
      }
    }
  }
}

// `stored.npz` with the little-endian number at `offset` from the first "PK\1\2" (or from `magic`) replaced.
std::string With(const std::string& magic, std::size_t offset, const std::string& bytes) {
  std::string file = *ReadFile(Data("stored.npz"));
  file.replace(file.find(magic) + offset, bytes.size(), bytes);
  return file;
}

TEST(NpzTest, HostileArchivesAreRefusedInWords) {
  const std::string entry("PK\1\2"), end("PK\5\6");
  const std::string ones32("\xff\xff\xff\x7f");
  const struct {
    std::string bytes;
    const char* message;
  } cases[] = {
      {"", "is not a .npz file"},
      {std::string(100, 'x'), "no end of a zip archive"},
      {With(end, 16, ones32), "its zip directory lies outside the file"},
      {With(end, 12, ones32), "its zip directory lies outside the file"},
      {With(end, 10, std::string("\xff\xff", 2)), "its zip directory is damaged"},
      {With(end, 4, std::string("\1\0", 2)), "is part of a split archive"},
      {With(entry, 28, std::string("\xff\xff", 2)), "its zip directory is damaged"},
      {With(entry, 8, std::string("\1\0", 2)), "member 'q.npy' is encrypted"},
      {With(entry, 10, std::string("\x0e\0", 2)), "is packed by method 14, expected 0 (stored) or 8 (deflated)"},
      {With(entry, 10, std::string("\x08\0", 2)), "does not inflate"},
      {With(entry, 24, ones32), "is stored with two different sizes"},
      {With(entry, 20, ones32), "is cut short"},
      {With(entry, 42, ones32), "is not where the zip directory says"},
      {With(entry, 16, std::string("\0\0\0\0", 4)), "is damaged (its CRC-32 differs)"},
  };
  for (const auto& one : cases) {
    const absl::StatusOr<NpzFile> file = NpzFile::Parse("l.npz", one.bytes);
    const absl::Status status = file.ok() ? file->Load("q").status() : file.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.message));
    EXPECT_EQ(status.message().substr(0, 7), "l.npz: ");
  }
}

TEST(NpzTest, APromiseThatDeflateCannotKeepAllocatesNothing) {
  std::string bomb = With("PK\1\2", 10, std::string("\x08\0", 2));
  bomb.replace(bomb.find("PK\1\2") + 24, 4, "\xff\xff\xff\x7f");
  const absl::StatusOr<NpzFile> file = NpzFile::Parse("bomb", bomb);
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(std::string(file->Load("q").status().message()),
              HasSubstr("promises 2147483647 bytes from 176, more than deflate can hold"));
}

}  // namespace
}  // namespace attnd::client
