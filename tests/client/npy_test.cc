#include "client/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/file.h"

namespace attnd::client {
namespace {

using ::testing::HasSubstr;

// Files that NumPy wrote: see tests/client/data/make.py.
std::string Data(const std::string& name) { return absl::StrCat(ATTND_SOURCE_DIR, "/tests/client/data/", name); }

void ExpectValues(const std::string& name, DType dtype, double (*value)(int)) {
  const absl::StatusOr<Array> array = ReadNpy(Data(name));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(array->dtype, dtype) << name;
  EXPECT_EQ(array->shape, (std::vector<std::int64_t>{3, 4})) << name;
  ASSERT_EQ(array->elements(), 12) << name;
  for (int i = 0; i < 12; ++i) EXPECT_EQ(array->At(i), value(i)) << name << " at " << i;
}
double Quarters(int i) { return (i - 5) / 4.0; }
double Integers(int i) { return i - 5; }
double Thirds(int i) { return i % 3 == 0 ? 1 : 0; }

TEST(NpyTest, ReadsWhatNumPyWroteInEveryTypeAndByteOrder) {
  ExpectValues("little_f2.npy", DType::kFloat16, Quarters);
  ExpectValues("little_f4.npy", DType::kFloat32, Quarters);
  ExpectValues("little_f8.npy", DType::kFloat64, Quarters);
  ExpectValues("big_f2.npy", DType::kFloat16, Quarters);
  ExpectValues("big_f4.npy", DType::kFloat32, Quarters);
  ExpectValues("big_f8.npy", DType::kFloat64, Quarters);
  ExpectValues("bfloat16.npy", DType::kBFloat16, Quarters);
  ExpectValues("little_i4.npy", DType::kInt64, Integers);
  ExpectValues("little_i8.npy", DType::kInt64, Integers);
  ExpectValues("big_i4.npy", DType::kInt64, Integers);
  ExpectValues("big_i8.npy", DType::kInt64, Integers);
  ExpectValues("bool.npy", DType::kBool, Thirds);
  ExpectValues("u1.npy", DType::kBool, Thirds);
  ExpectValues("version2.npy", DType::kFloat32, Quarters);
  ExpectValues("version3.npy", DType::kFloat32, Quarters);
}

TEST(NpyTest, FortranOrderIsTransposed) {
  ExpectValues("fortran_f4.npy", DType::kFloat32, Quarters);
  const absl::StatusOr<Array> rank3 = ReadNpy(Data("fortran_i4_rank3.npy"));
  ASSERT_TRUE(rank3.ok()) << rank3.status();
  EXPECT_EQ(rank3->shape, (std::vector<std::int64_t>{2, 3, 4}));
  for (int i = 0; i < 24; ++i) EXPECT_EQ(rank3->At(i), i);
}

TEST(NpyTest, EmptyAndScalar) {
  const absl::StatusOr<Array> empty = ReadNpy(Data("empty.npy"));
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(empty->shape, (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(empty->elements(), 0);
  const absl::StatusOr<Array> scalar = ReadNpy(Data("scalar.npy"));
  ASSERT_TRUE(scalar.ok()) << scalar.status();
  EXPECT_TRUE(scalar->shape.empty());
  EXPECT_EQ(scalar->At(0), 2.5);
}

TEST(NpyTest, WritesTheBytesThatNumPyWrites) {
  for (const char* name :
       {"little_f2.npy", "little_f4.npy", "little_f8.npy", "little_i8.npy", "bool.npy", "empty.npy"}) {
    const absl::StatusOr<Array> array = ReadNpy(Data(name));
    ASSERT_TRUE(array.ok()) << array.status();
    const std::string path = absl::StrCat(testing::TempDir(), "/written_", getpid(), ".npy");
    ASSERT_TRUE(WriteNpy(path, *array).ok());
    EXPECT_EQ(*ReadFile(path), *ReadFile(Data(name))) << name;
    std::remove(path.c_str());
  }
}

TEST(NpyTest, BFloat16ComesBack) {
  const absl::StatusOr<Array> array = ReadNpy(Data("bfloat16.npy"));
  ASSERT_TRUE(array.ok());
  const absl::StatusOr<Array> again = ParseNpy("again", NpyHeader(array->dtype, array->shape) + array->bytes);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->dtype, DType::kBFloat16);
  EXPECT_EQ(again->bytes, array->bytes);
}

// A version 1 file around a dict.
std::string File(const std::string& dict, const std::string& data = "") {
  const auto size = static_cast<std::uint16_t>(dict.size());
  return absl::StrCat("\x93NUMPY", std::string("\1\0", 2), std::string(reinterpret_cast<const char*>(&size), 2), dict,
                      data);
}

TEST(NpyTest, HostileFilesAreRefusedInWords) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
  ASSERT_TRUE(ParseNpy("f", File(good, "1234")).ok());
  const struct {
    std::string bytes;
    const char* message;
  } cases[] = {
      {"", "is not a .npy file"},
      {"PK\3\4", "is not a .npy file"},
      {"\x93NUMPY", "ends inside its .npy header"},
      {absl::StrCat("\x93NUMPY", std::string("\4\0\1\0{", 5)), "has .npy version 4.0"},
      {absl::StrCat("\x93NUMPY", std::string("\1\1\1\0{", 5)), "has .npy version 1.1"},
      {absl::StrCat("\x93NUMPY", std::string("\2\0\1\0", 4)), "ends inside its .npy header"},
      {absl::StrCat("\x93NUMPY", std::string("\2\0\xff\xff\xff\xff", 6)), "has a .npy header of 4294967295 bytes"},
      {absl::StrCat("\x93NUMPY", std::string("\1\0\xff\x7f", 4), "{}"), "ends inside its .npy header"},
      {File(good, "123"), "holds 3 bytes of data, but shape [1] of <f4 needs 1 elements of 4"},
      {File(good, "12345"), "holds 5 bytes of data"},
      {File(good, "12345678"), "holds 8 bytes of data"},
      {File("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }"),
       "more elements than fit int64"},
      {File("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }"), "holds 0 bytes of data"},
      {File("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }"), "a size in shape is not"},
      {File("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"), "a size in shape is not"},
      {File("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }"), "more than 8 dimensions"},
      {File("{'descr': '<f4', 'fortran_order': False, 'shape': 1, }"), "shape is not a tuple"},
      {File("{'descr': '<f4', 'fortran_order': False, 'shape': (1 1), }"), "expected ',' or ')' in shape"},
      {File("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }"), "fortran_order is neither True nor False"},
      {File("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }"), "dtype '<c8', expected one of"},
      {File("{'descr': '', 'fortran_order': False, 'shape': (1,), }"), "dtype '', expected one of"},
      {File("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"), "dtype '|O', expected one of"},
      {File("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }"), "structured dtypes are not taken"},
      {File("{'descr': '<f4', 'shape': (1,), }"), "one of descr, fortran_order and shape is missing"},
      {File("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"),
       "key 'descr' is unknown or there twice"},
      {File("{'color': '<f4'}"), "key 'color' is unknown"},
      {File("{'descr"), "expected a quoted key"},
      {File("{'descr': '<f4"), "descr is not a string"},
      {File("{'descr': '<f4' 'shape': (1,)}"), "expected ',' or '}'"},
      {File("[]"), "expected '{'"},
      {File(good + "x"), "more text after the dict"},
      {File(""), "expected '{'"},
  };
  for (const auto& one : cases) {
    const absl::StatusOr<Array> array = ParseNpy("q.npy", one.bytes);
    ASSERT_FALSE(array.ok()) << one.message;
    EXPECT_EQ(array.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(array.status().message()), HasSubstr(one.message));
    EXPECT_EQ(array.status().message().substr(0, 7), "q.npy: ");
  }
}

TEST(NpyTest, EveryCutOfAGoodFileIsRefused) {
  const std::string whole = *ReadFile(Data("big_f2.npy"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ParseNpy("cut", whole.substr(0, size)).ok()) << size;
  }
}

TEST(NpyTest, FilesOfOtherTypesAndNoFilesAreNamed) {
  EXPECT_THAT(std::string(ReadNpy(Data("complex.npy")).status().message()), HasSubstr("complex.npy: dtype '<c8'"));
  EXPECT_THAT(std::string(ReadNpy(Data("structured.npy")).status().message()),
              HasSubstr("structured dtypes are not taken"));
  EXPECT_THAT(std::string(ReadNpy(Data("u1_other.npy")).status().message()), HasSubstr("only 0 and 1 are taken"));
  EXPECT_EQ(ReadNpy("/nowhere/q.npy").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadNpy("/nowhere/q.npy").status().message()), HasSubstr("/nowhere/q.npy"));
  EXPECT_THAT(std::string(ReadNpy(Data("")).status().message()), HasSubstr("is a directory"));
}

TEST(NpyTest, AFullDiskIsReported) {
  EXPECT_FALSE(WriteNpy("/dev/full", Array::Of({1}, std::vector<float>{1})).ok());
  EXPECT_FALSE(WriteNpy("/nowhere/o.npy", Array::Of({1}, std::vector<float>{1})).ok());
}

}  // namespace
}  // namespace attnd::client
