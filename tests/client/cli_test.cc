#include "client/cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_join.h"
#include "client/cli/check.h"
#include "client/cli/flags.h"
#include "client/npy.h"
#include "tests/client/certificates.h"
#include "tests/client/fake_server.h"

namespace attnd::client {
namespace {

using ::testing::HasSubstr;

struct Ran {
  int code;
  std::string out, err;
};

Ran Attn(std::vector<std::string> words) {
  words.insert(words.begin(), "attn");
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  std::ostringstream out, err;
  const int code = RunCommandLine(static_cast<int>(argv.size()), argv.data(), {out, err});
  return {code, out.str(), err.str()};
}

// One line that begins with the command's name.
void ExpectOneLine(const Ran& ran) {
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_EQ(ran.err.substr(0, 4), "attn");
  EXPECT_EQ(ran.out, "");
}

class CliTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, std::vector<std::int64_t> shape, double phase) {
    Array array = *Array::Zeros(DType::kFloat32, std::move(shape));
    for (std::int64_t i = 0; i < array.elements(); ++i) array.Set(i, std::sin(phase + 0.7 * static_cast<double>(i)));
    const std::string path = File(name);
    EXPECT_TRUE(WriteNpy(path, array).ok());
    return path;
  }
  std::string File(const std::string& name) {
    return absl::StrCat(testing::TempDir(), "/cli_", getpid(), "_",
                        testing::UnitTest::GetInstance()->current_test_info()->name(), "_", name);
  }
  Ran Ask(std::vector<std::string> words) {
    words.insert(words.end(), {"--server", server_.target});
    return Attn(std::move(words));
  }
  // run with q [2,4,5,3] and grouped k, v.
  Ran Run(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"run",
                                      "--q",
                                      Write("q.npy", {2, 4, 5, 3}, 0),
                                      "--k",
                                      Write("k.npy", {2, 2, 7, 3}, 1),
                                      "--v",
                                      Write("v.npy", {2, 2, 7, 6}, 2)};
    words.insert(words.end(), more.begin(), more.end());
    return Ask(std::move(words));
  }
  FakeServer server_;
};

TEST_F(CliTest, HelpOfEveryCommandHasAnExampleAndExitsWithZero) {
  EXPECT_EQ(Attn({"--help"}).code, 0);
  EXPECT_THAT(Attn({"--version"}).out, HasSubstr("attn 0."));
  for (const char* command : {"run", "explain", "plan", "bench", "store", "info", "health"}) {
    const Ran ran = Attn({command, "--help"});
    EXPECT_EQ(ran.code, 0) << command;
    EXPECT_EQ(ran.err, "");
    EXPECT_THAT(ran.out, HasSubstr("Example"));
    EXPECT_THAT(ran.out, HasSubstr(absl::StrCat("\n  attn ", command)));
  }
}

TEST_F(CliTest, AMisspeltWordIsNamedWithTheOneThatWasMeant) {
  const std::pair<std::vector<std::string>, std::string> misspelt[] = {
      {{"runn"}, "attn: no command is called runn; did you mean run?; try `attn --help`\n"},
      {{"paln", "--shape", "1,8,5,64"}, "attn: no command is called paln; did you mean plan?; try `attn --help`\n"},
      {{"dance"}, "attn: no command is called dance; try `attn --help`\n"},
      {{"bench", "--rat", "50"},
       "attn bench: no flag is called --rat; did you mean --rate?; try `attn bench --help`\n"},
      {{"bench", "--lenghts=zipf:1"},
       "attn bench: no flag is called --lenghts; did you mean --lengths?; try `attn bench --help`\n"},
      {{"run", "--q", "a", "--color", "red"}, "attn run: no flag is called --color; try `attn run --help`\n"}};
  for (const auto& [words, said] : misspelt) {
    const Ran ran = Attn(words);
    EXPECT_EQ(ran.code, 2);
    EXPECT_EQ(ran.err, said);
  }
}

// Before anything is asked, let alone measured.
TEST_F(CliTest, AFileThatCannotBeWrittenIsSaidAtOnce) {
  const std::string nowhere = "/nowhere/at/all";
  for (const char* flag : {"--json", "--csv", "--html"}) {
    const Ran ran = Ask({"bench", flag, nowhere});
    EXPECT_EQ(ran.code, 1);
    ExpectOneLine(ran);
    EXPECT_THAT(ran.err, HasSubstr(nowhere));
  }
  for (const Ran& ran : {Run({"--output", nowhere}), Run({"--lse", nowhere}), Ask({"explain", "--html", nowhere}),
                         Ask({"plan", "--html", nowhere}), Run({"--output", testing::TempDir()})}) {
    EXPECT_EQ(ran.code, 1);
    ExpectOneLine(ran);
  }
  EXPECT_EQ(server_.calls.load(), 0);
}

TEST_F(CliTest, MistakesOnTheCommandLineExitWithTwoInOneLine) {
  const std::vector<std::vector<std::string>> mistakes = {
      {},
      {"dance"},
      {"run", "--color", "red"},
      {"run"},
      {"run", "--q"},
      {"health", "--timeout_ms", "0"},
      {"plan"},
      {"plan", "--shape", "1,8"},
      {"plan", "--shape", "1,8,2048,x"},
      {"plan", "--shape", "1,8,2048,64", "--dtype", "half"},
      {"plan", "--shape", "1,8,2048,64", "--layout", "bdnh"},
      {"plan", "--shape", "1,8,2048,64", "--mode", "fast"},
      {"plan", "--shape", "1,8,2048,64", "--q_offset", "1,two"},
      {"plan", "--shape", "1,8,2048,64", "--rotary_dim", "8"},
      {"bench", "--concurrency", "0"},
      {"bench", "--concurrency", "4:1:1"},
      {"bench", "--concurrency", "1", "--rate", "5"},
      {"bench", "--rate", "0"},
      {"bench", "--rate", "1:9"},
      {"bench", "--rate", "5", "--arrivals", "late"},
      {"store"},
      {"store", "keep", "k=k.npy"},
      {"store", "put"},
      {"store", "list", "k"},
      {"store", "put_weights", "a", "b"},
      {"bench", "--slo", "5"},
      {"bench", "--slo", "5ms", "--rate", "19"},  // 95 requests, of which nobody can tell a p99
      {"bench", "--rate", "5", "--fail_if", "p98>5ms"},
      {"bench", "--rate", "5", "--fail_if", "p99>5"},
      {"bench", "--rate", "5", "--lengths", "zipf:0"},
      {"bench", "--rate", "5", "--lengths", "normal:3:1"},
      {"bench", "--warm_up_calls", "-1"},
      {"bench", "--priority", "urgent"},
      {"bench", "--shape", "1,1,5,4", "--wire_dtype", "int64"},
      {"bench", "--shape", "1,1,99999999999,99999999999"},
      {"explain", "--row", "7"},
  };
  for (std::vector<std::string> words : mistakes) {
    const std::string text = absl::StrJoin(words, " ");
    if (!words.empty() && words[0] == "explain") words.insert(words.end(), {"--server", server_.target});
    const Ran ran = Attn(words);
    EXPECT_EQ(ran.code, 2) << text;
    ExpectOneLine(ran);
    EXPECT_THAT(ran.err, HasSubstr("--help`")) << text;
  }
}

TEST_F(CliTest, FailuresExitWithOneAndSayWhatToDo) {
  const Ran nobody = Attn({"info", "--server", "127.0.0.1:1"});
  EXPECT_EQ(nobody.code, 1);
  ExpectOneLine(nobody);
  EXPECT_THAT(nobody.err, HasSubstr("start a server (attnd --listen=127.0.0.1:1) or name another with --server"));
  const Ran no_file = Ask({"run", "--q", "/nowhere/q.npy", "--k", "k", "--v", "v"});
  EXPECT_EQ(no_file.code, 1);
  ExpectOneLine(no_file);
  EXPECT_THAT(no_file.err, HasSubstr("/nowhere/q.npy"));
}

TEST_F(CliTest, EveryCommandSpeaksTlsAndSendsTheToken) {
  Certificates made;
  made.MakeCa("ca");
  made.MakeLeaf("server", "ca", "DNS:attnd.example");
  made.MakeLeaf("me", "ca", "DNS:me.example");
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_key_cert_pairs.push_back({Certificates::Text(made.Key("server")), Certificates::Text(made.Pem("server"))});
  tls.pem_root_certs = Certificates::Text(made.Pem("ca"));
  FakeServer server(grpc::SslServerCredentials(tls));
  const std::vector<std::string> trust = {"--server",      server.target,       "--tls_ca",
                                          made.Pem("ca"),  "--tls_certificate", made.Pem("me"),
                                          "--tls_key",     made.Key("me"),      "--tls_server_name",
                                          "attnd.example", "--token_file",      made.Write("token", "secret\n")};
  const std::vector<std::vector<std::string>> commands = {
      {"explain"},
      {"plan", "--shape", "1,1,5,4"},
      {"bench", "--shape", "1,1,5,4", "--duration_s", "0.05"},
      {"info"},
      {"health"},
      {"run", "--q", Write("q.npy", {5, 4}, 0), "--k", Write("k.npy", {5, 4}, 1), "--v", Write("v.npy", {5, 4}, 2),
       "--stream"}};
  for (std::vector<std::string> words : commands) {
    words.insert(words.end(), trust.begin(), trust.end());
    const Ran ran = Attn(words);
    EXPECT_EQ(ran.code, 0) << words.front() << ": " << ran.err;
  }
  std::map<std::string, int> methods;
  for (const auto& [method, authorization] : server.Authorizations()) {
    ++methods[method];
    EXPECT_EQ(authorization, "Bearer secret") << method;
  }
  EXPECT_EQ(methods.size(), 5u);
}

TEST_F(CliTest, MistakesAboutTrustAreToldInOneLine) {
  Certificates made;
  made.MakeCa("ca");
  const std::string token = made.Write("token", "secret\n");
  const struct {
    std::vector<std::string> flags;
    int code;
    std::string words;
  } cases[] = {
      {{"--tls_key", "x"}, 2, "--tls_key requires --tls_certificate"},
      {{"--tls_certificate", "x"}, 2, "--tls_certificate requires --tls_key"},
      {{"--tls_ca", "/nowhere/ca.pem"}, 1, "/nowhere/ca.pem: No such file"},
      {{"--tls_ca", token}, 1, "without a PEM block"},
      {{"--tls_ca", made.Pem("ca")}, 1, "see --tls_ca, --tls_server_name"},
      {{"--token_file", "/nowhere/token"}, 1, "/nowhere/token: No such file"},
      {{"--server", "10.0.0.1:1", "--token_file", token}, 2, "give --tls or --tls_ca, or --allow_plaintext_token"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> words = {"health"};
    words.insert(words.end(), c.flags.begin(), c.flags.end());
    if (c.flags.front() != "--server") words.insert(words.end(), {"--server", server_.target});
    const Ran ran = Attn(words);
    EXPECT_EQ(ran.code, c.code) << ran.err;
    ExpectOneLine(ran);
    EXPECT_THAT(ran.err, HasSubstr(c.words));
    EXPECT_THAT(ran.err, testing::Not(HasSubstr("secret")));
  }
  EXPECT_THAT(server_.Authorizations(), testing::IsEmpty());
}

TEST_F(CliTest, TheTokensFileMayComeFromTheEnvironment) {
  Certificates made;
  const std::string token = made.Write("token", "from-environment\n"), other = made.Write("other", "from-flag\n");
  setenv("ATTN_TOKEN_FILE", token.c_str(), 1);
  EXPECT_EQ(Ask({"health"}).code, 0);
  EXPECT_EQ(Ask({"health", "--token_file", other}).code, 0);
  unsetenv("ATTN_TOKEN_FILE");
  EXPECT_THAT(server_.Authorizations(), testing::ElementsAre(testing::Pair("Check", "Bearer from-environment"),
                                                             testing::Pair("Check", "Bearer from-flag")));
}

TEST_F(CliTest, ARefusalIsPrintedInTheServersWordsOnOneLine) {
  server_.refusal = {grpc::StatusCode::INVALID_ARGUMENT, "k: one\n\x1b[31mtwo"};
  const Ran ran = Run({});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.err, "attn run: k: one  [31mtwo\n");
}

TEST_F(CliTest, HealthIsAnExitCode) {
  EXPECT_EQ(Ask({"health"}).code, 0);
  server_.serving = false;
  EXPECT_EQ(Ask({"health"}).code, 1);
  EXPECT_EQ(Ask({"health", "--service", "nothing"}).code, 1);
}

TEST_F(CliTest, InfoAndPlanAsTableAndJson) {
  EXPECT_THAT(Ask({"info"}).out, HasSubstr("--message_bytes_max  1048576  1 MiB"));
  const nlohmann::json info = nlohmann::json::parse(Ask({"info", "--json"}).out);
  EXPECT_EQ(info["threads"], 3);
  EXPECT_EQ(info["dtypes"][0], "bfloat16");
  EXPECT_EQ(info["limits"][0]["flag"], "message_bytes_max");
  EXPECT_THAT(Ask({"plan", "--shape", "1,8,4096,128"}).out, HasSubstr("64 MiB  67108864"));
  const nlohmann::json plan =
      nlohmann::json::parse(Ask({"plan", "--json", "--nq", "3", "--nk", "5", "--d_k", "7"}).out);
  EXPECT_EQ(plan["scores_per_head"], 15);
  EXPECT_EQ(plan["admitted"], true);
}

TEST_F(CliTest, TheLessonHasItsDigits) {
  const Ran ran = Ask({"explain"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  for (const char* line : {"1·1 + 0·0 + 0.5·0.8 + 1·1 = 2.40", "1·0 + 0·1 + 0.5·0.2 + 1·0 = 0.10",
                           "1·0.2 + 0·0.2 + 0.5·0.4 + 1·0.1 = 0.50", "2.40 / 2 = 1.20", "0.10 / 2 = 0.05",
                           "0.50 / 2 = 0.25", "3.3201 / 5.6554 = 0.5871",
                           "0.5871·0.9 + 0.1859·0.1 + 0.2270·0.3 = 0.6151", "  score     2.40     0.10    0.50\n",
                           "  scaled    1.20     0.05    0.25\n", "  weight  0.5871   0.1859  0.2270\n",
                           "\"it\" before: 0.3 0.3 0.5 0.2\n", "\"it\" after:  0.6151 0.2941 0.5616 0.5337\n"}) {
    EXPECT_THAT(ran.out, HasSubstr(line));
  }
}

TEST_F(CliTest, ExplainNamesTheChosenRow) {
  const std::vector<std::string> words = {"explain",
                                          "--q",
                                          Write("q.npy", {3, 2}, 0),
                                          "--k",
                                          Write("k.npy", {3, 2}, 1),
                                          "--v",
                                          Write("v.npy", {3, 2}, 2),
                                          "--labels",
                                          "the,cat,sat",
                                          "--row",
                                          "1"};
  const Ran ran = Ask(words);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("The query of \"cat\""));
  // v[1] = sin(2 + 0.7 * 2), sin(2 + 0.7 * 3)
  EXPECT_THAT(ran.out, HasSubstr("\"cat\" before: -0.2555 -0.8183"));
}

TEST_F(CliTest, RunWritesTheSameFilesByEitherCall) {
  std::map<std::string, std::string> whole;
  for (const char* call : {"--unary", "--stream"}) {
    const std::string o = File("o.npy"), w = File("w.npy"), l = File("l.npy"), s = File("s.npy");
    const Ran ran =
        Run({call, "--output", o, "--weights", w, "--lse", l, "--scores", "scaled=" + s, "--check_rows", "40"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("output [2,4,5,6] float32"));
    EXPECT_THAT(ran.out, HasSubstr("2 GF/s"));
    EXPECT_THAT(ran.out, HasSubstr("check: 40 rows of output"));
    EXPECT_THAT(ran.out, HasSubstr("check: 40 rows of weights"));
    for (const std::string& path : {o, w, l, s}) {
      const absl::StatusOr<Array> array = ReadNpy(path);
      ASSERT_TRUE(array.ok()) << array.status();
      if (whole.count(path) > 0) {
        EXPECT_EQ(array->bytes, whole[path]) << path;
      }
      whole[path] = array->bytes;
    }
    EXPECT_EQ(ReadNpy(w)->shape, (std::vector<std::int64_t>{2, 4, 5, 7}));
  }
  EXPECT_GT(server_.stream_problems, 0);
}

TEST_F(CliTest, RunInHalfWidthKeepsTheFilesType) {
  for (const char* call : {"--unary", "--stream"}) {
    const std::string o = File("o.npy");
    const Ran ran = Run({call, "--wire_dtype", "bfloat16", "--output", o, "--check_rows", "40"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("output [2,4,5,6] float32"));
    const absl::StatusOr<Array> output = ReadNpy(o);
    ASSERT_TRUE(output.ok());
    EXPECT_EQ(output->dtype, DType::kFloat32);
    const absl::StatusOr<Array> narrow = Convert(*output, DType::kBFloat16);
    EXPECT_EQ(Convert(*narrow, DType::kFloat32)->bytes, output->bytes) << "the output did not travel as bfloat16";
  }
  const Ran unknown = Run({"--wire_dtype", "half"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--wire_dtype: 'half', expected float32, float16, bfloat16 or float64"));
}

TEST_F(CliTest, CheckRowsCatchesAWrongNumber) {
  server_.spoil = [this](v1::AttendResponse& response) {
    if (server_.unary_calls > 1) return;  // the checking calls stay right
    float wrong = 0.5F;
    std::memcpy(response.mutable_output()->mutable_data()->data() + 4 * (239 - 6), &wrong, 4);
  };
  const Ran ran = Run({"--check_rows", "40"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("outside the tolerance"));
}

TEST_F(CliTest, CheckRowsSpreadOverAllHeads) {
  OutputLayout layout;
  layout.batch = 2;
  layout.heads = 3;
  layout.rows = 10;
  const SampledRows rows = SampleRows(layout, 7);
  EXPECT_EQ(rows.at({0, 0}).front(), 0);
  EXPECT_EQ(rows.at({1, 2}).back(), 9);
  std::size_t count = 0;
  for (const auto& [head, list] : rows) count += list.size();
  EXPECT_EQ(count, 7u);
  EXPECT_EQ(SampleRows(layout, 1000).at({1, 1}).size(), 10u);
  layout.rows = 0;
  EXPECT_TRUE(SampleRows(layout, 7).empty());
}

TEST_F(CliTest, RunReadsNpzByNameInAnyCase) {
  const Ran ran = Ask({"run", "--npz", absl::StrCat(ATTND_SOURCE_DIR, "/tests/client/data/stored.npz")});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--k is missing: give it a .npy file, or an array 'k' in --npz"));
  // q and Mask [3, 4] come from the archive, k and v from their own files.
  const std::string k = Write("k.npy", {4, 4}, 0), v = Write("v.npy", {4, 2}, 1), o = File("o.npy"), w = File("w.npy");
  const Ran mixed = Ask({"run", "--npz", absl::StrCat(ATTND_SOURCE_DIR, "/tests/client/data/stored.npz"), "--k", k,
                         "--v", v, "--output", o, "--weights", w});
  ASSERT_EQ(mixed.code, 0) << mixed.err;
  EXPECT_EQ(ReadNpy(o)->shape, (std::vector<std::int64_t>{3, 2}));
  const absl::StatusOr<Array> weights = ReadNpy(w);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(weights->At(i) > 0, i % 3 == 0) << i;
}

TEST_F(CliTest, SingleValuesAreRepeatedPerSequence) {
  OptionFlags flags;
  flags.q_offset = "-3";
  flags.kv_len = "4,5";
  flags.sinks = "0.5,-inf";
  v1::Options options;
  ASSERT_TRUE(flags.Apply(2, 8, &options).ok());
  EXPECT_THAT(options.q_offset(), testing::ElementsAre(-3, -3));
  EXPECT_THAT(options.kv_len(), testing::ElementsAre(4, 5));
  EXPECT_THAT(options.sinks(), testing::ElementsAre(0.5F, -INFINITY));
  EXPECT_EQ(ShapeFlag::Parse("--shape", "2,32/8,1,4096,128/64")->kv_heads, 8);
  EXPECT_EQ(ShapeFlag::Parse("--shape", "2,32/8,1,4096,128/64")->d_v, 64);
  EXPECT_EQ(ShapeFlag::Parse("--shape", "2,32,7,128")->nk, 7);
}

}  // namespace
}  // namespace attnd::client
