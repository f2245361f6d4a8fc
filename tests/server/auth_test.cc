#include "server/auth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

using ::testing::HasSubstr;

// FIPS 180-2, appendix B.1: SHA-256 of "abc".
constexpr char kDigestOfAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

std::string With(absl::string_view field) {
  return absl::StrCat(R"({"identities":[{"name":"one","tokens_sha256":[")", kDigestOfAbc, R"("],"methods":["*"])",
                      field, "}]}");
}

TEST(AuthTest, ADigestIsTheStandards) {
  const TokenDigest digest = DigestOf("abc");
  EXPECT_EQ(absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()}), kDigestOfAbc);
  EXPECT_TRUE(SameDigest(digest, DigestOf("abc")));
  for (std::size_t i = 0; i < digest.size(); ++i) {
    TokenDigest other = digest;
    other[i] ^= 1;
    EXPECT_FALSE(SameDigest(digest, other)) << i;
  }
}

TEST(AuthTest, AWholeFile) {
  const absl::StatusOr<AuthRules> rules =
      ParseAuth(absl::StrCat(R"({"identities":[{"name":"platform","tokens_sha256":[")", kDigestOfAbc,
                             R"("],"certificates":["spiffe://cluster/platform","platform.example"],
          "methods":["attnd.v1.AttentionService/*","grpc.health.v1.Health/Check"],"priority_max":"normal",
          "requests_in_flight_max":3,"bytes_in_flight_max":1073741824,"requests_per_second":50,"store_bytes_max":7}],
         "anonymous":{"methods":["grpc.health.v1.Health/Check"]}})"));
  ASSERT_TRUE(rules.ok()) << rules.status();
  ASSERT_EQ(rules->identities.size(), 1u);
  const IdentityRule& rule = rules->identities[0];
  EXPECT_EQ(rule.name, "platform");
  ASSERT_EQ(rule.tokens.size(), 1u);
  EXPECT_TRUE(SameDigest(rule.tokens[0], DigestOf("abc")));
  EXPECT_EQ(rule.certificates, (std::vector<std::string>{"spiffe://cluster/platform", "platform.example"}));
  EXPECT_EQ(rule.policy.priority_max, v1::PRIORITY_NORMAL);
  EXPECT_EQ(rule.policy.requests_in_flight_max, 3);
  EXPECT_EQ(rule.policy.bytes_in_flight_max, 1073741824);
  EXPECT_EQ(rule.policy.requests_per_second, 50);
  EXPECT_EQ(rule.policy.store_bytes_max, 7);
  EXPECT_TRUE(rule.policy.Allows("attnd.v1.AttentionService/Plan"));
  EXPECT_TRUE(rule.policy.Allows("grpc.health.v1.Health/Check"));
  EXPECT_FALSE(rule.policy.Allows("grpc.health.v1.Health/Watch"));
  EXPECT_FALSE(rule.policy.Allows("attnd.v1.AttentionServiceOther/Plan"));
  ASSERT_TRUE(rules->anonymous.has_value());
  EXPECT_EQ(rules->anonymous->requests_per_second, Policy::kNoLimit);
  EXPECT_EQ(rules->anonymous->store_bytes_max, Policy::kNoLimit);
  EXPECT_FALSE(rules->anonymous->Allows("attnd.v1.AttentionService/Attend"));
}

TEST(AuthTest, AnEmptyFileLetsNobodyIn) {
  const absl::StatusOr<AuthRules> rules = ParseAuth("{}");
  ASSERT_TRUE(rules.ok());
  EXPECT_TRUE(rules->identities.empty());
  EXPECT_FALSE(rules->anonymous.has_value());
}

TEST(AuthTest, WhatIsWrongIsNamed) {
  const struct {
    std::string file;
    const char* words;
  } wrong[] = {
      {"", "auth file: 0 bytes that are not JSON"},
      {"{", "not JSON"},
      {"[]", "auth file: [], expected an object"},
      {R"({"identites":[]})", "auth file.identites: not known, expected one of identities, anonymous"},
      {R"({"identities":{}})", "identities: {}, expected a list"},
      {R"({"identities":[3]})", "identities[0]: 3, expected an object"},
      {R"({"identities":[{"methods":["*"]}]})", "identities[0].name: absent, expected a string"},
      {R"({"identities":[{"name":"a b","methods":["*"]}]})", "identities[0].name: \"a b\", expected 1 to 64"},
      {R"({"identities":[{"name":"a","methods":["*"]}]})", "neither tokens_sha256 nor certificates"},
      {R"({"identities":[{"name":"a","certificates":["c"]}]})", "identities[0].methods: absent"},
      {R"({"identities":[{"name":"a","certificates":[""],"methods":["*"]}]})", "certificates[0]: \"\", expected"},
      {R"({"identities":[{"name":"a","tokens_sha256":["hunter2"],"methods":["*"]}]})",
       "identities[0].tokens_sha256: a string of 7 bytes, expected the 64 hex digits"},
      {With(R"(,"method":[])"), "identities[0].method: not known"},
      {With(R"(,"priority_max":"urgent")"), R"(priority_max: "urgent", expected "low", "normal" or "high")"},
      {With(R"(,"requests_in_flight_max":0)"), "requests_in_flight_max: 0, expected a whole number of at least 1"},
      {With(R"(,"bytes_in_flight_max":-5)"), "bytes_in_flight_max: -5, expected"},
      {With(R"(,"store_bytes_max":"1 GiB")"), R"(store_bytes_max: "1 GiB", expected a whole number of at least 1)"},
      {With(R"(,"requests_per_second":1.5)"), "requests_per_second: 1.5, expected"},
      {With(R"(,"requests_per_second":18446744073709551615)"), "requests_per_second: 18446744073709551615, expected"},
      {R"({"anonymous":{}})", "anonymous.methods: absent"},
      {R"({"anonymous":{"methods":["Attend"]}})", R"(anonymous.methods: "Attend", expected "package.Service/Method")"},
      {R"({"anonymous":{"methods":["*"],"name":"x"}})", "anonymous.name: not known"},
      {absl::StrCat(std::string(100000, '['), std::string(100000, ']')), "expected an object"},
  };
  for (const auto& [file, words] : wrong) {
    const absl::Status status = ParseAuth(file).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << file.substr(0, 100);
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("hunter2")));
  }
}

TEST(AuthTest, NobodyIsTwoPeople) {
  const std::string one = absl::StrCat(R"({"name":"one","tokens_sha256":[")", kDigestOfAbc, R"("],"methods":["*"]})");
  const std::string two = absl::StrCat(R"({"name":"two","tokens_sha256":[")", kDigestOfAbc, R"("],"methods":["*"]})");
  for (const std::string& other : {one, two}) {
    EXPECT_THAT(std::string(ParseAuth(absl::StrCat(R"({"identities":[)", one, ",", other, "]}")).status().message()),
                HasSubstr("is there twice"));
  }
}

}  // namespace
}  // namespace attnd::server
