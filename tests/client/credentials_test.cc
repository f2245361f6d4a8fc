#include "client/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "client/client.h"
#include "tests/client/certificates.h"
#include "tests/client/fake_server.h"

namespace attnd::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Two CAs, and what they signed.
class CredentialsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new Certificates;
    made_->MakeCa("ca");
    made_->MakeCa("other");
    made_->MakeLeaf("server", "ca", "DNS:localhost,IP:127.0.0.1");
    made_->MakeLeaf("elsewhere", "ca", "DNS:elsewhere.example");
    made_->MakeLeaf("me", "ca", "DNS:me.example");
    made_->MakeLeaf("stranger", "other", "DNS:me.example");
  }
  static void TearDownTestSuite() { delete std::exchange(made_, nullptr); }

  // What a server is started with; with `client_ca` it lets in only whom that signed.
  static std::shared_ptr<grpc::ServerCredentials> ServerTls(const std::string& name,
                                                            const std::string& client_ca = "") {
    grpc::SslServerCredentialsOptions options(client_ca.empty()
                                                  ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                  : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_key_cert_pairs.push_back({Certificates::Text(made_->Key(name)), Certificates::Text(made_->Pem(name))});
    if (!client_ca.empty()) options.pem_root_certs = Certificates::Text(made_->Pem(client_ca));
    return grpc::SslServerCredentials(options);
  }
  static Credentials Trusting(const std::string& ca) {
    Credentials credentials;
    credentials.ca.file = made_->Pem(ca);
    return credentials;
  }
  static Credentials As(const std::string& name) {
    Credentials credentials = Trusting("ca");
    credentials.certificate.file = made_->Pem(name);
    credentials.key.file = made_->Key(name);
    return credentials;
  }
  static Credentials WithToken(const std::string& token) {
    Credentials credentials;
    credentials.token.text = token;
    return credentials;
  }
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& target, const Credentials& credentials) {
    ClientOptions options;
    options.credentials = credentials;
    return Client::Connect(target, options);
  }
  // Connects and asks for health.
  static absl::Status Try(const std::string& target, const Credentials& credentials) {
    const absl::StatusOr<std::unique_ptr<Client>> client = Connect(target, credentials);
    return client.ok() ? (*client)->Health().status() : client.status();
  }
  static void ExpectSays(const absl::Status& status, absl::StatusCode code, const std::vector<std::string>& words) {
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& word : words) EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }

  inline static Certificates* made_ = nullptr;
};

TEST_F(CredentialsTest, TheTokenComesWithEveryCall) {
  FakeServer over_tls(ServerTls("server")), plain;
  for (FakeServer* server : {&over_tls, &plain}) {
    Credentials credentials = server == &over_tls ? Trusting("ca") : Credentials();
    credentials.token.text = " abc.DEF-123\r\n";
    const absl::StatusOr<std::unique_ptr<Client>> client = Connect(server->target, credentials);
    ASSERT_TRUE(client.ok()) << client.status();
    const Array tensor = *Array::Zeros(DType::kFloat32, {5, 4});
    const Problem problem = *Problem::FromQkv(tensor, tensor, tensor);
    v1::PlanRequest plan;
    *plan.mutable_problem() = problem.request();
    EXPECT_TRUE((*client)->Attend(problem).ok());
    EXPECT_TRUE((*client)->AttendStream(problem).ok());
    EXPECT_TRUE((*client)->OpenStream()->Attend(problem).ok());
    EXPECT_TRUE((*client)->Plan(plan).ok());
    EXPECT_TRUE((*client)->Info().ok());
    EXPECT_TRUE((*client)->Health().ok());
    const std::string sent = "Bearer abc.DEF-123";
    EXPECT_THAT(server->Authorizations(),
                testing::UnorderedElementsAre(testing::Pair("Attend", sent), testing::Pair("AttendStream", sent),
                                              testing::Pair("AttendStream", sent), testing::Pair("Plan", sent),
                                              testing::Pair("Info", sent), testing::Pair("Check", sent)));
  }
}

TEST_F(CredentialsTest, WithoutATokenNoneIsSent) {
  FakeServer server;
  EXPECT_TRUE(Try(server.target, {}).ok());
  EXPECT_THAT(server.Authorizations(), testing::ElementsAre(testing::Pair("Check", "")));
}

TEST_F(CredentialsTest, TlsAndMutualTls) {
  FakeServer server(ServerTls("server")), mutual(ServerTls("server", "ca")), elsewhere(ServerTls("elsewhere"));
  EXPECT_TRUE(Try(server.target, Trusting("ca")).ok());
  EXPECT_TRUE(Try(mutual.target, As("me")).ok());
  Credentials named = Trusting("ca");
  named.server_name = "elsewhere.example";
  EXPECT_TRUE(Try(elsewhere.target, named).ok());
  Credentials texts;
  texts.ca.text = Certificates::Text(made_->Pem("ca"));
  texts.certificate.text = Certificates::Text(made_->Pem("me"));
  texts.key.text = Certificates::Text(made_->Key("me"));
  EXPECT_TRUE(Try(mutual.target, texts).ok());
}

TEST_F(CredentialsTest, AServerThatIsNotTheRightOneIsNotTalkedTo) {
  FakeServer server(ServerTls("server")), elsewhere(ServerTls("elsewhere")), plain;
  Credentials system;
  system.tls = true;
  using absl::StatusCode::kUnauthenticated;
  for (const Credentials& wrong : {Trusting("other"), system}) {
    ExpectSays(Try(server.target, wrong), kUnauthenticated, {server.target, "certificate verify failed"});
  }
  Credentials named = Trusting("ca");
  named.server_name = "third.example";
  ExpectSays(Try(elsewhere.target, Trusting("ca")), kUnauthenticated, {"127.0.0.1 is not in peer certificate"});
  ExpectSays(Try(server.target, named), kUnauthenticated, {"third.example is not in peer certificate"});
  Credentials token = Trusting("ca");
  token.token.text = "secret";
  ExpectSays(Try(plain.target, token), kUnauthenticated, {"it seems to speak no TLS"});
  EXPECT_THAT(server.Authorizations(), testing::IsEmpty());
  EXPECT_THAT(elsewhere.Authorizations(), testing::IsEmpty());
  EXPECT_THAT(plain.Authorizations(), testing::IsEmpty());
}

TEST_F(CredentialsTest, AServerThatClosesIsToldApartFromNoServer) {
  FakeServer server(ServerTls("server")), mutual(ServerTls("server", "ca"));
  using absl::StatusCode::kUnavailable;
  ExpectSays(Try(server.target, {}), kUnavailable, {server.target, "closed the connection", "nothing but TLS"});
  for (const Credentials& wrong : {Trusting("ca"), As("stranger")}) {
    ExpectSays(Try(mutual.target, wrong), kUnavailable, {"closed the connection", "another client certificate"});
  }
  ExpectSays(Try("127.0.0.1:1", Trusting("ca")), kUnavailable, {"no server answers at 127.0.0.1:1"});
  EXPECT_TRUE(Try(mutual.target, As("me")).ok());
}

TEST_F(CredentialsTest, ATokenIsNotSentWhereOthersCanReadIt) {
  const char* const local[] = {"127.0.0.1:50051",      "127.8.9.10:1",
                               "localhost:1",          "LocalHost",
                               "[::1]:50051",          "::1",
                               "unix:/run/attnd.sock", "unix:///run/a.sock",
                               "unix-abstract:attnd",  "dns:///localhost:1",
                               "dns:127.0.0.1:1",      "ipv4:127.0.0.1:1,127.0.0.2:1",
                               "ipv6:[::1]:1"};
  const char* const remote[] = {"10.0.0.1:50051",
                                "attnd.example:443",
                                "[2001:db8::1]:1",
                                "0.0.0.0:1",
                                "dns://10.0.0.1/localhost:1",
                                "ipv4:127.0.0.1:1,10.0.0.1:1",
                                "localhost.example:1",
                                "127.0.0.1.example:1",
                                "xds:///attnd",
                                "[::ffff:10.0.0.1]:1",
                                "127.1:1",
                                ""};
  for (const char* target : local) {
    EXPECT_TRUE(IsLocalTarget(target)) << target;
    EXPECT_TRUE(LoadCredentials(WithToken("secret"), target).ok()) << target;
  }
  Credentials over_tls = WithToken("secret"), allowed = WithToken("secret");
  over_tls.tls = true;
  allowed.allow_plaintext_token = true;
  for (const char* target : remote) {
    EXPECT_FALSE(IsLocalTarget(target)) << target;
    EXPECT_TRUE(LoadCredentials(over_tls, target).ok()) << target;
    EXPECT_TRUE(LoadCredentials(allowed, target).ok()) << target;
    EXPECT_TRUE(LoadCredentials({}, target).ok()) << target;
    const absl::Status refused = Connect(target, WithToken("secret")).status();
    ExpectSays(refused, absl::StatusCode::kFailedPrecondition,
               {absl::StrCat("not sent to ", target, " without TLS"), "expected TLS, a Unix socket or loopback"});
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("secret")));
  }
}

TEST_F(CredentialsTest, WhatIsOnThisMachineIsNotReachedThroughAProxy) {
  FakeServer server;
  setenv("http_proxy", "http://127.0.0.1:1", 1);
  const absl::Status status = Try(server.target, WithToken("secret"));
  unsetenv("http_proxy");
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(CredentialsTest, ErrorsNameTheFileWhatCameAndWhatWasExpected) {
  const std::string empty = made_->Write("empty", ""), text = made_->Write("text", "hunter2 is no certificate\n");
  const std::string ca = made_->Pem("ca"), me = made_->Pem("me"), me_key = made_->Key("me");
  const std::string torn = made_->Write("torn", Certificates::Text(me).substr(0, 200));
  const std::string second_torn =
      made_->Write("second_torn", Certificates::Text(ca) + Certificates::Text(me).substr(0, 200));
  const std::string locked =
      made_->Write("locked",
                   "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQ\n"
                   "-----END ENCRYPTED PRIVATE KEY-----\n");
  struct Case {
    std::string ca, certificate, key;
    absl::StatusCode code;
    std::vector<std::string> words;
  };
  using absl::StatusCode::kInvalidArgument;
  const Case cases[] = {
      {"/nowhere/ca.pem", "", "", absl::StatusCode::kNotFound, {"/nowhere/ca.pem", "No such file"}},
      {empty, "", "", kInvalidArgument, {empty + ": is empty, expected PEM of 'CERTIFICATE'"}},
      {text, "", "", kInvalidArgument, {text + ": holds 26 bytes without a PEM block"}},
      {me_key, "", "", kInvalidArgument, {me_key + ": holds PEM of 'PRIVATE KEY', expected PEM of 'CERTIFICATE'"}},
      {torn, "", "", kInvalidArgument, {torn + ": certificate 1 of 1 cannot be read"}},
      {second_torn, "", "", kInvalidArgument, {second_torn + ": certificate 2 of 2 cannot be read"}},
      {"", me, "", kInvalidArgument, {me + ": a certificate without its key, expected both or neither"}},
      {"", "", me_key, kInvalidArgument, {me_key + ": a key without its certificate, expected both or neither"}},
      {"", me, "/nowhere/key", absl::StatusCode::kNotFound, {"/nowhere/key"}},
      {"", me, me, kInvalidArgument, {me + ": holds PEM of 'CERTIFICATE', expected PEM of a whole 'PRIVATE KEY'"}},
      {"", me, text, kInvalidArgument, {text + ": holds 26 bytes without a PEM block, expected PEM of a whole"}},
      {"", me, locked, kInvalidArgument, {locked + ": holds PEM of 'ENCRYPTED PRIVATE KEY'", "without passphrase"}},
      {"", me_key, me_key, kInvalidArgument, {me_key + ": holds PEM of 'PRIVATE KEY', expected PEM of 'CERTIFICATE'"}},
      {"",
       me,
       made_->Key("server"),
       kInvalidArgument,
       {made_->Key("server") + ": is not the key of the certificate in " + me}},
  };
  for (const Case& c : cases) {
    Credentials credentials;
    credentials.ca.file = c.ca;
    credentials.certificate.file = c.certificate;
    credentials.key.file = c.key;
    const absl::Status status = Connect("127.0.0.1:1", credentials).status();
    ExpectSays(status, c.code, c.words);
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("hunter2")));
  }
  Credentials both;
  both.ca = {Certificates::Text(ca), ca};
  ExpectSays(Connect("127.0.0.1:1", both).status(), kInvalidArgument, {"a text and a file"});
}

TEST_F(CredentialsTest, ATokenIsOneLineOfVisibleAscii) {
  const struct {
    std::string text, words;
  } cases[] = {
      {" \n", ": is empty, expected a token on one line"},
      {"hunter2\nhunter3\n", ": has 2 lines, expected a token on one line"},
      {"hunter2 x", ": character 8 is no visible ASCII"},
      {"hunter\xc3\xbc", ": character 7 is no visible ASCII"},
      {std::string("hunter2\0x", 9), ": character 8 is no visible ASCII"},
      {std::string(kTokenCharactersMax + 1, 'x'), ": holds 4097 bytes, expected a token of at most 4096"},
  };
  for (const auto& c : cases) {
    Credentials credentials;
    credentials.token.file = made_->Write("token", c.text);
    const absl::Status status = Connect("127.0.0.1:1", credentials).status();
    ExpectSays(status, absl::StatusCode::kInvalidArgument, {credentials.token.file + c.words});
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("hunter")));
  }
  Credentials longest;
  longest.token.text = std::string(kTokenCharactersMax, '~');
  EXPECT_EQ(LoadCredentials(longest, "localhost:1")->token.text.size(), kTokenCharactersMax);
}

}  // namespace
}  // namespace attnd::client
