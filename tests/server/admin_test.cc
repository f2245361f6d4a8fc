// Starting and ending the admin port, and who counts as on this machine.
#include "server/admin.h"

#include <gtest/gtest.h>

#include <string>

namespace attnd::server {
namespace {

ServerConfig OneThread() {
  ServerConfig config;
  config.threads = 1;
  config.memory_bytes_max = 256 << 20;
  return config;
}

TEST(AdminTest, OnlyLoopbackIsThisMachine) {
  for (const char* address : {"127.0.0.1", "127.8.7.6", "::1", "::ffff:127.0.0.1"}) EXPECT_TRUE(IsLoopback(address));
  for (const char* address : {"", "10.0.0.1", "1.127.0.0", "128.0.0.1", "0.0.0.0", "::", "::2", "fe80::1", "1::1",
                              "::ffff:10.127.0.1", "localhost"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(AdminTest, APortIsChosenHeldAndGivenBack) {
  Engine engine(Resolve(OneThread()));
  std::string address;
  {
    const absl::StatusOr<std::unique_ptr<Admin>> admin = Admin::Start(engine, "127.0.0.1:0");
    ASSERT_TRUE(admin.ok()) << admin.status();
    EXPECT_GT((*admin)->port(), 0);
    address = (*admin)->address();
    EXPECT_EQ(address, "127.0.0.1:" + std::to_string((*admin)->port()));
    const absl::Status taken = Admin::Start(engine, address).status();
    EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(taken.message().find("--admin_listen: " + address), absl::string_view::npos) << taken;
  }
  EXPECT_TRUE(Admin::Start(engine, address).ok());
}

TEST(AdminTest, OnEveryAddress) {
  Engine engine(Resolve(OneThread()));
  const absl::StatusOr<std::unique_ptr<Admin>> admin = Admin::Start(engine, "0.0.0.0:0");
  ASSERT_TRUE(admin.ok()) << admin.status();
}

}  // namespace
}  // namespace attnd::server
