// Files that weights are read from, and manifests: what is right is read, and whatever is not is refused in words.
#include "server/weight_source.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "server/weight_manifest.h"

namespace attnd::server {
namespace {

using testing::HasSubstr;

std::string Size(std::uint64_t bytes) { return std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes)); }

// Two tensors, of 2 and 3 elements.
const std::string kHeader = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                            R"("b":{"dtype":"BF16","shape":[1,3],"data_offsets":[8,14]}})";
const std::string kData = "abcdefghijklmn";
const std::string kFile = Size(kHeader.size()) + kHeader + kData;

class WeightSourceTest : public testing::Test {
 protected:
  WeightSourceTest() {
    std::string name = testing::TempDir() + "weights-XXXXXX";
    path_ = mkdtemp(name.data());
    folder_ = Descriptor(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~WeightSourceTest() override { std::filesystem::remove_all(path_); }

  absl::StatusOr<WeightSource> Open(const std::string& content) {
    std::ofstream(path_ / "f", std::ios::binary | std::ios::trunc) << content;
    return WeightSource::Open(folder_, "f");
  }
  std::string WhyNot(const std::string& header, const std::string& data = kData) {
    return std::string(Open(Size(header.size()) + header + data).status().message());
  }

  std::filesystem::path path_;
  Descriptor folder_;
};

TEST_F(WeightSourceTest, TensorsAreReadFromTheirPlaces) {
  const absl::StatusOr<WeightSource> source = Open(kFile);
  ASSERT_TRUE(source.ok()) << source.status();
  for (const auto& [name, dtype, shape, bytes] :
       {std::tuple{"a", DType::kFloat32, std::vector<std::int64_t>{2}, "abcdefgh"},
        {"b", DType::kBFloat16, std::vector<std::int64_t>{1, 3}, "ijklmn"}}) {
    const SafetensorsTensor* const tensor = source->header().Find(name);
    ASSERT_NE(tensor, nullptr);
    const absl::StatusOr<InputTensor> described = source->Describe(*tensor);
    ASSERT_TRUE(described.ok());
    EXPECT_EQ(described->dtype, dtype);
    EXPECT_EQ(described->shape, shape);
    std::string read;
    ASSERT_TRUE(source->Read(*tensor, [&read](absl::string_view part) { read += std::string(part); }).ok());
    EXPECT_EQ(read, bytes);
  }
  EXPECT_EQ(source->header().Find("c"), nullptr);
}

TEST_F(WeightSourceTest, AFileThatIsCutAnywhereIsRefused) {
  for (std::size_t bytes = 0; bytes < kFile.size(); ++bytes) {
    const absl::Status status = Open(kFile.substr(0, bytes)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes << ": " << status;
  }
}

TEST_F(WeightSourceTest, AFileThatIsCutShortWhileItIsReadIsAnError) {
  const absl::StatusOr<WeightSource> source = Open(kFile);
  ASSERT_TRUE(source.ok());
  std::filesystem::resize_file(path_ / "f", kFile.size() - 1);
  EXPECT_EQ(source->Read(*source->header().Find("b"), [](absl::string_view) {}),
            absl::UnavailableError("f: it became shorter while it was read"));
}

TEST_F(WeightSourceTest, OffsetsThatLieAreRefused) {
  const auto with = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + a +
           R"(},"b":{"dtype":"BF16","shape":[1,3],"data_offsets":)" + b + "}}";
  };
  EXPECT_THAT(WhyNot(with("[0,8]", "[7,13]"), kData.substr(1)), HasSubstr("overlaps the one before it"));
  EXPECT_THAT(WhyNot(with("[0,8]", "[9,15]"), kData + "x"), HasSubstr("leaves bytes between"));
  EXPECT_THAT(WhyNot(with("[0,8]", "[8,15]"), kData + "x"), HasSubstr("needs 3 elements of 2"));
  EXPECT_THAT(WhyNot(with("[0,8]", "[8,14]"), kData + "x"), HasSubstr("belong to no tensor"));
  EXPECT_THAT(WhyNot(with("[0,8]", "[14,8]")), HasSubstr("data_offsets"));
  EXPECT_THAT(WhyNot(with("[0,8]", "[8,18446744073709551615]")), HasSubstr("data_offsets"));
  EXPECT_THAT(WhyNot(with("[-8,0]", "[8,14]")), HasSubstr("data_offsets"));
}

TEST_F(WeightSourceTest, TypesThatWeightsNeverHaveAreRefused) {
  const std::string header = R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})";
  const absl::StatusOr<WeightSource> whole = Open(Size(header.size()) + header + "abcdefgh");
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->Describe(*whole->header().Find("a")).status(),
            absl::InvalidArgumentError("f: tensor 'a' has dtype 'F64', expected F32, F16 or BF16"));
}

TEST_F(WeightSourceTest, WhatIsNoFileIsRefused) {
  EXPECT_EQ(WeightSource::Open(folder_, "none").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(WeightSource::Open(folder_, ".").status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo((path_ / "pipe").c_str(), 0600), 0);  // opening it must not wait
  EXPECT_EQ(WeightSource::Open(folder_, "pipe").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(WeightSourceTest, AHeaderThatIsWrittenIsRead) {
  const std::vector<SafetensorsTensor> tensors = {{"x", "F16", {2, 1}, 0, 4}, {"y", "F32", {}, 4, 8}};
  const std::string start = WriteSafetensorsHeader(tensors, {{"key", "\"quoted\" \xC3\xA9"}});
  EXPECT_EQ(start.size() % 8, 0u);
  const absl::StatusOr<WeightSource> source = Open(start + "abcdefgh");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->header().metadata.at("key"), "\"quoted\" \xC3\xA9");
  EXPECT_EQ(source->header().Find("x")->shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(source->header().Find("y")->end, 8u);
}

TEST(WeightManifestTest, SaysWhatASetIsMadeOf) {
  const absl::StatusOr<WeightManifest> manifest = ParseManifest(
      R"({"name": "l0", "version": 3, "files": ["a", "b"], "q_heads": 8, "kv_heads": 2, "weights_transposed": true,
          "tensors": {"w_q": "q", "b_o": "o"},
          "rotary": {"style": "interleaved", "rotary_dim": 64, "rope_base": 5e5}})");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->head.name, "l0");
  EXPECT_EQ(manifest->head.version, 3);
  EXPECT_EQ(manifest->files, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(manifest->projection.q_heads, 8);
  EXPECT_EQ(manifest->projection.kv_heads, 2);
  EXPECT_TRUE(manifest->projection.weights_transposed);
  EXPECT_EQ(manifest->tensors, (std::map<std::string, std::string>{{"w_q", "q"}, {"b_o", "o"}}));
  EXPECT_EQ(manifest->rotary->style, RotaryStyle::kInterleaved);
  EXPECT_EQ(manifest->rotary->rotary_dim, 64);
  EXPECT_EQ(manifest->rotary->rope_base, 500000);
}

TEST(WeightManifestTest, WhatIsWrongIsNamed) {
  const std::string good = R"("name": "l0", "version": 3, "q_heads": 8, "kv_heads": 2, "tensors": {})";
  ASSERT_TRUE(ParseManifest("{" + good + "}").ok());
  const auto why_not = [&good](const std::string& more) {
    return std::string(ParseManifest("{" + good + more + "}").status().message());
  };
  EXPECT_THAT(why_not(R"(, "name": "l1")"), HasSubstr("each name once"));
  EXPECT_THAT(why_not(R"(, "heads": 3)"), HasSubstr("manifest.heads: not known"));
  EXPECT_THAT(why_not(R"(, "weights_transposed": 1)"), HasSubstr("manifest.weights_transposed: 1"));
  for (const std::string name : {R"("")", R"(".")", R"("..")", R"("a/b")", R"("/etc")", R"("a\u0000")", "7"}) {
    EXPECT_THAT(why_not(R"(, "files": [)" + name + "]"), HasSubstr("manifest.files")) << name;
  }
  EXPECT_THAT(why_not(R"(, "rotary": {})"), HasSubstr("manifest.rotary.style: null"));
  EXPECT_THAT(why_not(R"(, "rotary": {"style": "half", "rotary_dim": -2})"), HasSubstr("manifest.rotary.rotary_dim"));
  EXPECT_THAT(why_not(R"(, "rotary": {"style": "half", "rotary_dim": 2, "rope_base": "9"})"),
              HasSubstr("manifest.rotary.rope_base"));
  for (const std::string text : {"", "[]", "{", R"({"a": [[[[[]]]]]})", R"({"name": 5})", R"({"name": "a"})",
                                 R"({"name": "a", "version": 1, "q_heads": 1, "kv_heads": 1})"}) {
    EXPECT_EQ(ParseManifest(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace attnd::server
