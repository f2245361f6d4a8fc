#include "server/open_calls.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/status/status.h"

namespace attnd::server {
namespace {

constexpr char kOne[] = "ipv4:127.0.0.1:1", kOther[] = "ipv4:127.0.0.1:2";

std::string RefusalOf(OpenCalls& calls, const std::string& peer) {
  const absl::StatusOr<OpenCalls::Place> place = calls.Enter(peer);
  EXPECT_TRUE(absl::IsResourceExhausted(place.status())) << place.status();
  return std::string(place.status().message());
}

TEST(OpenCallsTest, AConnectionHasItsShareAndLeavesTheRestToOthers) {
  OpenCalls calls("open calls", {2, "each_max"}, {3, "all_max"});
  std::vector<OpenCalls::Place> places = {*calls.Enter(kOne), *calls.Enter(kOne)};
  EXPECT_EQ(RefusalOf(calls, kOne), "open calls of this connection: allowed 2 (each_max); retry after 200 ms");
  EXPECT_TRUE(calls.IsFull(kOne));
  places.push_back(*calls.Enter(kOther));
  EXPECT_EQ(calls.open(), 3);
  EXPECT_EQ(RefusalOf(calls, kOther), "open calls: allowed 3 (all_max); retry after 200 ms");
  EXPECT_FALSE(calls.IsFull(kOther));  // others have what it lacks
  places.clear();
  EXPECT_EQ(calls.open(), 0);
  EXPECT_FALSE(calls.IsFull(kOne));
  EXPECT_TRUE(calls.Enter(kOther).ok());
}

TEST(OpenCallsTest, WhatIsAlwaysTakenCountsToo) {
  OpenCalls calls("open calls", {2, "each_max"}, {1, "all_max"});
  const OpenCalls::Place first = *calls.Enter(kOne);
  OpenCalls::Place beyond = *calls.Enter(kOne, /*always=*/true);
  EXPECT_EQ(calls.open(), 2);
  beyond.reset();
  EXPECT_EQ(RefusalOf(calls, kOther), "open calls: allowed 1 (all_max); retry after 200 ms");
}

// Their peers all have one name.
TEST(OpenCallsTest, UnixSocketsHaveNoShare) {
  OpenCalls calls("open calls", {1, "each_max"}, {3, "all_max"});
  const std::vector<OpenCalls::Place> places = {*calls.Enter("unix:"), *calls.Enter("unix:"), *calls.Enter("unix:")};
  EXPECT_EQ(RefusalOf(calls, "unix:"), "open calls: allowed 3 (all_max); retry after 200 ms");
  EXPECT_FALSE(calls.IsFull("unix:"));
}

}  // namespace
}  // namespace attnd::server
