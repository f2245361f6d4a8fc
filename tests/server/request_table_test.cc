// What runs is there while it runs; of what ended, the slowest are kept, and not for long.
#include "server/request_table.h"

#include <gtest/gtest.h>

#include <utility>

namespace attnd::server {
namespace {

TEST(RequestTableTest, ARowIsThereWhileItIsHeld) {
  RequestTable table;
  RequestTable::Row first(table, "Attend", "peer a", "ann");
  {
    RequestTable::Row second(table, "AttendStream", "peer b", "");
    first.SetShape("B1");
    first.SetStage(Stage::kComputing);
    const std::vector<RunningRequest> running = table.Running(10);
    ASSERT_EQ(running.size(), 2u);
    EXPECT_EQ(running[0].method, "Attend");
    EXPECT_EQ(running[0].peer, "peer a");
    EXPECT_EQ(running[0].identity, "ann");
    EXPECT_EQ(running[0].shape, "B1");
    EXPECT_EQ(running[0].stage, Stage::kComputing);
    EXPECT_EQ(running[1].stage, Stage::kReceiving);
    EXPECT_EQ(table.Running(1).size(), 1u);
    EXPECT_EQ(table.CountRunning("Attend"), 1);
    EXPECT_EQ(table.CountRunning("AttendStream"), 1);
  }
  EXPECT_EQ(table.CountRunning("AttendStream"), 0);
  RequestTable::Row moved = std::move(first);
  moved.SetStage(Stage::kSending);
  EXPECT_EQ(table.Running(10).at(0).stage, Stage::kSending);
  moved.Leave();
  moved.Leave();
  EXPECT_TRUE(table.Running(10).empty());
}

RequestRecord Took(int milliseconds) {
  RequestRecord record;
  record.total = absl::Milliseconds(milliseconds);
  return record;
}

TEST(RequestTableTest, TheSlowestAreKept) {
  RequestTable table;
  const absl::Time start = absl::UnixEpoch();
  for (int n = 0; n < 1000; ++n) table.Ended(Took((n * 37) % 1000), start);
  const std::vector<EndedRequest> slowest = table.Slowest(start);
  ASSERT_EQ(slowest.size(), 20u);
  for (std::size_t n = 0; n < slowest.size(); ++n) {
    EXPECT_EQ(slowest[n].record.total, absl::Milliseconds(999 - static_cast<int>(n)));
  }
}

TEST(RequestTableTest, ForTenMinutes) {
  RequestTable table;
  const absl::Time start = absl::UnixEpoch();
  for (int n = 0; n < 100; ++n) table.Ended(Took(5000), start);
  table.Ended(Took(1), start + absl::Minutes(9));
  EXPECT_EQ(table.Slowest(start + absl::Minutes(9)).size(), 20u);  // a quick one does not displace a slow one
  EXPECT_TRUE(table.Slowest(start + absl::Minutes(11)).empty());
  table.Ended(Took(2), start + absl::Minutes(11));
  ASSERT_EQ(table.Slowest(start + absl::Minutes(12)).size(), 1u);
  EXPECT_EQ(table.Slowest(start + absl::Minutes(12))[0].record.total, absl::Milliseconds(2));
}

}  // namespace
}  // namespace attnd::server
