#include "server/connections.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace attnd::server {
namespace {

// A pair of sockets of which the table has one end; the other is told of its end.
class ConnectionsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0); }
  void TearDown() override { close(ends_[1]); }
  bool PeerIsCutOff() const {
    char byte = 0;
    return recv(ends_[1], &byte, 1, MSG_DONTWAIT) == 0;
  }
  int ends_[2] = {-1, -1};
};

TEST_F(ConnectionsTest, WhoEndsTooManyCallsUnreadIsCutOffOnce) {
  Connections connections(/*unread_per_second=*/2);
  connections.Add(ends_[0], "ipv4:10.0.0.1:5");
  const absl::Time start = absl::UnixEpoch();
  // Twenty at once, and two more for each second that passes.
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(connections.CountUnread("ipv4:10.0.0.1:5", start));
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(connections.CountUnread("ipv4:10.0.0.1:5", start + absl::Seconds(1)));
  EXPECT_FALSE(PeerIsCutOff());
  EXPECT_TRUE(connections.CountUnread("ipv4:10.0.0.1:5", start + absl::Seconds(1)));
  EXPECT_TRUE(PeerIsCutOff());
  EXPECT_FALSE(connections.CountUnread("ipv4:10.0.0.1:5", start + absl::Seconds(1)));
  EXPECT_EQ(connections.size(), 1u);
  EXPECT_TRUE(connections.Remove(ends_[0]));
  EXPECT_FALSE(connections.Remove(ends_[0]));
  EXPECT_EQ(connections.size(), 0u);
  EXPECT_FALSE(connections.CountUnread("ipv4:10.0.0.1:5", start));
}

TEST_F(ConnectionsTest, AConnectionIsUsedFromItsFirstCallOn) {
  Connections connections(/*unread_per_second=*/1);
  connections.Add(ends_[0], "ipv4:10.0.0.1:5");
  connections.CountCall("ipv4:10.0.0.1:6");
  EXPECT_EQ(connections.used(), 0);
  connections.CountCall("ipv4:10.0.0.1:5");
  connections.CountCall("ipv4:10.0.0.1:5");
  EXPECT_TRUE(connections.Remove(ends_[0]));
  connections.CountCall("ipv4:10.0.0.1:5");
  EXPECT_EQ(connections.used(), 1);
}

TEST_F(ConnectionsTest, AUnixSocketIsNotCutOffForItsNeighbour) {
  Connections connections(/*unread_per_second=*/1);
  connections.Add(ends_[0], "unix:");
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(connections.CountUnread("unix:", absl::UnixEpoch()));
  EXPECT_FALSE(PeerIsCutOff());
  EXPECT_TRUE(connections.Remove(ends_[0]));
}

TEST(PeerNameTest, IsWhatGrpcSays) {
  sockaddr_storage address{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(50051);
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(PeerName(address), "ipv4:127.0.0.1:50051");
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(50051);
  v6.sin6_addr = in6addr_loopback;
  EXPECT_EQ(PeerName(address), "ipv6:%5B::1%5D:50051");
  address = {};
  address.ss_family = AF_UNIX;
  EXPECT_EQ(PeerName(address), "unix:");
}

}  // namespace
}  // namespace attnd::server
