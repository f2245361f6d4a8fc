#include "server/flags.h"

#include <gtest/gtest.h>

#include <string>

namespace attnd::server {
namespace {

TEST(FlagsTest, DefaultsAreValidAndResolveToThisMachine) {
  EXPECT_TRUE(CheckConfig(ServerConfig{}).ok());
  const ServerConfig resolved = Resolve(ServerConfig{});
  EXPECT_GE(resolved.threads, 1);
  EXPECT_GT(resolved.memory_bytes_max, 0);
  EXPECT_EQ(resolved.pool_bytes_max, resolved.memory_bytes_max / 16);
  ServerConfig chosen;
  chosen.threads = 3;
  chosen.pool_bytes_max = 77;
  chosen.memory_bytes_max = 12345;
  EXPECT_EQ(Resolve(chosen).threads, 3);
  EXPECT_EQ(Resolve(chosen).memory_bytes_max, 12345);
  EXPECT_EQ(Resolve(chosen).pool_bytes_max, 77);
}

TEST(FlagsTest, ValuesOutsideTheirRangeAreNamed) {
  ServerConfig config;
  config.drain_ms = -5;
  EXPECT_EQ(std::string(CheckConfig(config).message()), "--drain_ms: -5, expected 0 to 1099511627776");
  config = {};
  config.message_bytes_max = std::int64_t{1} << 31;
  EXPECT_EQ(std::string(CheckConfig(config).message()),
            "--message_bytes_max: 2147483648, expected 65536 to 2147483647");
  config = {};
  config.instruction_set = "sse2";
  EXPECT_EQ(std::string(CheckConfig(config).message()), "--instruction_set: \"sse2\", expected auto or avx2");
  config.instruction_set = "avx2";
  config.log_format = "xml";
  EXPECT_EQ(std::string(CheckConfig(config).message()), "--log_format: \"xml\", expected text or json");
  config = {};
  config.log_level = "loud";
  EXPECT_EQ(CheckConfig(config).code(), absl::StatusCode::kInvalidArgument);
  config = {};
  config.listen.clear();
  EXPECT_EQ(CheckConfig(config).code(), absl::StatusCode::kInvalidArgument);
}

TEST(FlagsTest, Addresses) {
  for (const char* address :
       {"127.0.0.1:0", "localhost:65535", "[::1]:50051", "unix:/run/attnd.sock", "unix:attnd.sock"}) {
    ServerConfig config;
    config.listen = {"127.0.0.1:1", address};
    EXPECT_TRUE(CheckConfig(config).ok()) << address;
  }
  for (const char* address :
       {"127.0.0.1", "127.0.0.1:", ":50051", "127.0.0.1:99999", "127.0.0.1:-1", "host:http", "unix:"}) {
    ServerConfig config;
    config.listen = {"127.0.0.1:1", address};
    EXPECT_EQ(std::string(CheckConfig(config).message()),
              std::string("--listen: \"") + address + "\", expected host:port with a port of 0 to 65535, or unix:path");
  }
}

TEST(FlagsTest, BeyondThisMachineOnlyWithTlsOrExplicitly) {
  for (const char* local : {"127.0.0.1:1", "127.8.9.10:1", "localhost:1", "[::1]:1", "unix:/run/attnd.sock"}) {
    ServerConfig config;
    config.listen = {local};
    EXPECT_TRUE(CheckConfig(config).ok()) << local;
  }
  for (const char* open : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "attnd.example:1", "128.0.0.1:1"}) {
    ServerConfig config;
    config.listen = {"127.0.0.1:1", open};
    EXPECT_EQ(std::string(CheckConfig(config).message()),
              std::string("--listen: \"") + open +
                  "\" is reached from beyond this machine, expected --tls_certificate and --tls_key, or --insecure");
    config.insecure = true;
    EXPECT_TRUE(CheckConfig(config).ok());
    config.insecure = false;
    config.tls_certificate = "tls.crt";
    EXPECT_EQ(std::string(CheckConfig(config).message()),
              "--tls_certificate, --tls_key: one of them is empty, expected both or none");
    config.tls_key = "tls.key";
    EXPECT_TRUE(CheckConfig(config).ok());
  }
  ServerConfig config;
  config.tls_client_ca = "ca.crt";
  EXPECT_EQ(std::string(CheckConfig(config).message()),
            "--tls_client_ca: expected with --tls_certificate and --tls_key only");
}

TEST(FlagsTest, TheTableIsWhatInfoReports) {
  ServerConfig config;
  config.block_bytes = 4097;
  int found = 0;
  for (const FlagValue& flag : NumberFlags(config)) found += flag.flag == "block_bytes" && flag.value == 4097;
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace attnd::server
