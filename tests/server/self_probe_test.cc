#include "server/self_probe.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace attnd::server {
namespace {

ProbeTarget Nobody() { return {"127.0.0.1:1", grpc::InsecureChannelCredentials(), "token"}; }

void AwaitOneOf(const std::atomic<int>& count) {
  while (count == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(SelfProbeTest, AServerThatNobodyReachesIsGivenUp) {
  std::atomic<int> given_up{0};
  SelfProbe probe(
      Nobody(), absl::Milliseconds(1), [] { return 0; }, [&] { ++given_up; });
  AwaitOneOf(given_up);
  probe.Stop();
  EXPECT_EQ(given_up, 1);
}

TEST(SelfProbeTest, OneThatTurnsConnectionsAwayIsNot) {
  std::atomic<int> given_up{0}, asked{0};
  SelfProbe probe(
      Nobody(), absl::Milliseconds(1), [&] { return ++asked; }, [&] { ++given_up; });
  while (asked < 2 * (SelfProbe::kFailuresMax + 3)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  probe.Stop();
  EXPECT_EQ(given_up, 0);
}

TEST(SelfProbeTest, AWildcardIsReachedOnThisMachine) {
  EXPECT_EQ(ReachableAddress("0.0.0.0:50051"), "127.0.0.1:50051");
  EXPECT_EQ(ReachableAddress("[::]:50051"), "[::1]:50051");
  EXPECT_EQ(ReachableAddress("10.1.2.3:50051"), "10.1.2.3:50051");
  EXPECT_EQ(ReachableAddress("unix:/run/attnd.sock"), "unix:/run/attnd.sock");
}

}  // namespace
}  // namespace attnd::server
