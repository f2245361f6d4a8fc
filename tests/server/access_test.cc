#include "server/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace attnd::server {
namespace {

using ::testing::HasSubstr;

constexpr char kAttend[] = "attnd.v1.AttentionService/Attend";

IdentityRule Rule(std::string name, std::string token, Policy policy = {}) {
  return {std::move(name), std::move(policy), {DigestOf(token)}, {}};
}

Credentials Token(absl::string_view token) { return {DigestOf(token), {}}; }

TEST(AccessTest, WithoutRulesEveryoneMayDoEverything) {
  Access access;
  for (const Credentials& credentials : {Credentials{}, Token("any")}) {
    const absl::StatusOr<Caller> caller = access.Identify(credentials, kAttend);
    ASSERT_TRUE(caller.ok()) << caller.status();
    EXPECT_EQ(caller->name(), "");
    EXPECT_EQ(caller->identity_class(), IdentityClass::kAnonymous);
    EXPECT_EQ(*caller->WeightOf(v1::PRIORITY_HIGH), 16);
    EXPECT_TRUE(caller->Enter().ok());
  }
  const absl::StatusOr<Caller> known = access.Identify({std::nullopt, {"spiffe://a/b", "b"}}, kAttend);
  EXPECT_EQ(known->name(), "spiffe://a/b");
  EXPECT_EQ(known->identity_class(), IdentityClass::kCertificate);
}

TEST(AccessTest, RulesThatComeLaterCloseWhatWasOpen) {
  Access access;
  AuthRules rules;
  rules.anonymous = Policy();
  access.Replace(rules);
  EXPECT_TRUE(absl::IsUnauthenticated(access.Identify(Token("any"), kAttend).status()));
  EXPECT_EQ(access.Identify({std::nullopt, {"spiffe://a/b"}}, kAttend)->name(), "");
}

TEST(AccessTest, TokensAndCertificatesAreSomebodys) {
  AuthRules rules;
  rules.identities = {Rule("one", "t1"), Rule("two", "t2")};
  rules.identities[1].certificates = {"spiffe://cluster/two"};
  rules.identities[1].policy.methods = {"attnd.v1.AttentionService/Plan"};
  Access access(rules);
  EXPECT_EQ(access.Identify(Token("t1"), kAttend)->name(), "one");
  EXPECT_EQ(access.Identify(Token("t1"), kAttend)->identity_class(), IdentityClass::kToken);
  EXPECT_EQ(access.Identify({std::nullopt, {"x", "spiffe://cluster/two"}}, "attnd.v1.AttentionService/Plan")->name(),
            "two");
  // A wrong token is refused, whatever the certificate.
  EXPECT_TRUE(absl::IsUnauthenticated(access.Identify({DigestOf("t3"), {"spiffe://cluster/two"}}, kAttend).status()));
  EXPECT_TRUE(absl::IsUnauthenticated(access.Identify({std::nullopt, {"spiffe://cluster"}}, kAttend).status()));
  EXPECT_TRUE(absl::IsUnauthenticated(access.Identify({}, kAttend).status()));
  EXPECT_EQ(access.Identify(Token("t2"), kAttend).status(),
            absl::PermissionDeniedError("identity \"two\" may not call attnd.v1.AttentionService/Attend"));
}

TEST(AccessTest, AnonymousCallersHaveAPolicyOfTheirOwn) {
  AuthRules rules;
  rules.anonymous = Policy();
  rules.anonymous->methods = {"grpc.health.v1.Health/Check"};
  Access access(rules);
  EXPECT_TRUE(access.Identify({}, "grpc.health.v1.Health/Check").ok());
  EXPECT_EQ(access.Identify({}, kAttend).status(),
            absl::PermissionDeniedError("anonymous callers may not call attnd.v1.AttentionService/Attend"));
}

TEST(AccessTest, PriorityHasACeiling) {
  AuthRules rules;
  rules.anonymous = Policy();
  rules.anonymous->priority_max = v1::PRIORITY_NORMAL;
  rules.identities = {Rule("low", "t")};
  rules.identities[0].policy.priority_max = v1::PRIORITY_LOW;
  Access access(rules);
  const Caller normal = *access.Identify({}, kAttend), low = *access.Identify(Token("t"), kAttend);
  EXPECT_EQ(*normal.WeightOf(v1::PRIORITY_UNSPECIFIED), 4);
  EXPECT_EQ(*normal.WeightOf(v1::PRIORITY_LOW), 1);
  EXPECT_EQ(normal.WeightOf(v1::PRIORITY_HIGH).status(),
            absl::PermissionDeniedError("priority: high, this identity may ask for at most normal"));
  EXPECT_EQ(*low.WeightOf(v1::PRIORITY_UNSPECIFIED), 1);
  EXPECT_TRUE(absl::IsPermissionDenied(low.WeightOf(v1::PRIORITY_NORMAL).status()));
}

TEST(AccessTest, RequestsInFlightAreCountedByIdentityAndGivenBack) {
  AuthRules rules;
  rules.identities = {Rule("one", "t1"), Rule("two", "t2")};
  for (IdentityRule& rule : rules.identities) rule.policy.requests_in_flight_max = 2;
  Access access(rules);
  const Caller one = *access.Identify(Token("t1"), kAttend), again = *access.Identify(Token("t1"), kAttend);
  absl::StatusOr<Pass> first = one.Enter(), second = again.Enter();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(std::string(one.Enter().status().message()),
              HasSubstr("requests in flight of this identity: 2 of 2 (requests_in_flight_max); retry after"));
  EXPECT_TRUE(access.Identify(Token("t2"), kAttend)->Enter().ok());
  first = Pass();
  EXPECT_TRUE(one.Enter().ok());
}

TEST(AccessTest, RequestsASecondComeAtOnceAndThenByTheClock) {
  AuthRules rules;
  rules.identities = {Rule("one", "t1")};
  rules.identities[0].policy.requests_per_second = 3;
  Access access(rules);
  const Caller one = *access.Identify(Token("t1"), kAttend);
  const absl::Time start = absl::Now();
  int allowed = 0;
  for (int i = 0; i < 100; ++i) allowed += one.Enter().ok() ? 1 : 0;
  // At most three, and three more for each second that passed meanwhile.
  EXPECT_GE(allowed, 3);
  EXPECT_LE(allowed, 3 + 3 * absl::ToDoubleSeconds(absl::Now() - start) + 1);
  absl::Status refused;
  while (refused.ok()) refused = one.Enter().status();  // one more may have come due
  EXPECT_THAT(std::string(refused.message()), HasSubstr("allowed 3 (requests_per_second); retry after"));
}

TEST(AccessTest, ACallThatStaysOpenLosesWhatWasTaken) {
  AuthRules rules;
  rules.identities = {Rule("one", "t1")};
  rules.identities[0].tokens.push_back(DigestOf("t1b"));
  rules.identities[0].policy.requests_in_flight_max = 1;
  Access access(rules);
  const Caller one = *access.Identify(Token("t1"), kAttend);
  absl::StatusOr<Pass> before = one.Enter();
  rules.identities[0].policy.requests_in_flight_max = 2;
  access.Replace(rules);
  // What was in flight counts on, under the new limit.
  absl::StatusOr<Pass> second = one.Enter();
  EXPECT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(absl::IsResourceExhausted(one.Enter().status()));
  rules.identities[0].tokens = {DigestOf("t1b")};
  access.Replace(rules);
  EXPECT_TRUE(absl::IsUnauthenticated(one.Enter().status()));
  rules.identities[0] = Rule("other", "t1");
  access.Replace(rules);
  EXPECT_TRUE(absl::IsUnauthenticated(one.Enter().status()));
}

TEST(AccessTest, AnIdentityInNoFileIsKnownToo) {
  Access access(AuthRules{});
  access.Add(Rule("attnd/self-probe", "secret", Policy{.methods = {"grpc.health.v1.Health/Check"}}));
  EXPECT_EQ(access.Identify(Token("secret"), "grpc.health.v1.Health/Check")->name(), "attnd/self-probe");
  EXPECT_TRUE(absl::IsPermissionDenied(access.Identify(Token("secret"), kAttend).status()));
  access.Replace(AuthRules{});
  EXPECT_TRUE(access.Identify(Token("secret"), "grpc.health.v1.Health/Check").ok());
}

}  // namespace
}  // namespace attnd::server
