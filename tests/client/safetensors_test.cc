#include "client/safetensors.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd::client {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// A file that the safetensors package wrote: see tests/client/data/make_safetensors.py.
absl::StatusOr<SafetensorsFile> All() {
  return SafetensorsFile::Open(absl::StrCat(ATTND_SOURCE_DIR, "/tests/client/data/all.safetensors"));
}

std::string File(const std::string& header, std::size_t data_bytes) {
  std::uint64_t bytes = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &bytes, 8);
  return file + header + std::string(data_bytes, '\0');
}

std::string Tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[", shape, "],\"data_offsets\":[", offsets,
                      "]}");
}

std::string WhyNot(const std::string& bytes) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Parse("x.safetensors", bytes);
  EXPECT_TRUE(absl::IsInvalidArgument(file.status())) << file.status();
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("x.safetensors: "));
  return std::string(file.status().message());
}

TEST(SafetensorsTest, ReadsEveryTypeOfTheContract) {
  const absl::StatusOr<SafetensorsFile> file = All();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->names(), Contains("layers.0.Name with spaces"));
  const std::pair<const char*, DType> floats[] = {
      {"f32", DType::kFloat32}, {"f16", DType::kFloat16}, {"bf16", DType::kBFloat16}, {"f64", DType::kFloat64},
      {"i64", DType::kInt64},   {"i32", DType::kInt64},   {"bool", DType::kBool},     {"u8", DType::kBool}};
  for (const auto& [name, dtype] : floats) {
    const absl::StatusOr<Array> array = file->Load(name);
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->dtype, dtype);
    EXPECT_EQ(array->shape, (std::vector<std::int64_t>{3, 4}));
    for (int i = 0; i < 12; ++i) {
      const double right = IsFloat(dtype) ? (i - 5) / 4.0 : dtype == DType::kBool ? (i % 3 == 0 ? 1 : 0) : i - 5;
      EXPECT_EQ(array->At(i), right) << name << " " << i;
    }
  }
  const absl::StatusOr<Array> empty = file->Load("empty"), scalar = file->Load("scalar");
  ASSERT_TRUE(empty.ok() && scalar.ok());
  EXPECT_EQ(empty->shape, (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(scalar->shape, std::vector<std::int64_t>{});
  EXPECT_EQ(scalar->At(0), 2.5);
}

TEST(SafetensorsTest, SaysWhatItDoesNotLoad) {
  const absl::StatusOr<SafetensorsFile> file = All();
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(std::string(file->Load("i16").status().message()), HasSubstr("has dtype 'I16', expected one of F32"));
  EXPECT_THAT(std::string(file->Load("u8_other").status().message()), HasSubstr("bytes other than 0 and 1"));
  EXPECT_TRUE(absl::IsNotFound(file->Load("q").status()));
  EXPECT_THAT(std::string(file->Load("q").status().message()), HasSubstr("has no tensor 'q'; there are: "));
}

TEST(SafetensorsTest, EveryCutOfAFileIsRefused) {
  const absl::StatusOr<std::string> bytes =
      ReadFile(absl::StrCat(ATTND_SOURCE_DIR, "/tests/client/data/all.safetensors"));
  ASSERT_TRUE(bytes.ok());
  for (std::size_t size = 0; size < bytes->size(); ++size) {
    EXPECT_FALSE(SafetensorsFile::Parse("cut", bytes->substr(0, size)).ok()) << size;
  }
}

TEST(SafetensorsTest, EachMistakeHasItsSentence) {
  EXPECT_THAT(WhyNot("short"), HasSubstr("shorter than its first 8 bytes"));
  EXPECT_THAT(WhyNot(std::string(8, '\xff')), HasSubstr("at most 16777216 are read"));
  EXPECT_THAT(WhyNot(File("{}", 0).substr(0, 9)), HasSubstr("ends inside its safetensors header"));
  EXPECT_THAT(WhyNot(File("[]", 0)), HasSubstr("not a JSON object"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "U8", "", "0,1") + "," + Tensor("a", "U8", "", "1,2") + "}", 2)),
              HasSubstr("each there once"));
  EXPECT_THAT(WhyNot(File("{\"__metadata__\":" + std::string(100000, '[') + std::string(100000, ']') + "}", 0)),
              HasSubstr("not a JSON object"));
  EXPECT_THAT(WhyNot(File("{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 0)), HasSubstr("has not exactly dtype"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "U8", "-1", "0,1") + "}", 1)), HasSubstr("has a shape that is not"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "U8", "1.0", "0,1") + "}", 1)), HasSubstr("has a shape that is not"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "U8", "1,1,1,1,1,1,1,1,1", "0,1") + "}", 1)), HasSubstr("at most 8"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "U8", "1", "1,0") + "}", 1)), HasSubstr("the second not smaller"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "U8", "1", "0,1,2") + "}", 1)), HasSubstr("the second not smaller"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "F32", "3", "0,8") + "}", 8)), HasSubstr("needs 3 elements of 4"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "F32", "4611686018427387904,4", "0,8") + "}", 8)), HasSubstr("int64"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "U8", "2", "0,2") + "}", 1)), HasSubstr("beyond the end of the file"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "U8", "2", "0,2") + "," + Tensor("b", "U8", "2", "1,3") + "}", 3)),
              HasSubstr("overlaps the one before it"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "U8", "1", "0,1") + "," + Tensor("b", "U8", "1", "2,3") + "}", 3)),
              HasSubstr("leaves bytes between"));
  EXPECT_THAT(WhyNot(File("{" + Tensor("a", "U8", "1", "0,1") + "}", 2)), HasSubstr("belong to no tensor"));
}

}  // namespace
}  // namespace attnd::client
