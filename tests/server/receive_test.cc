// Small fields are bounded and their parsed form is reserved before it exists.
#include "server/receive.h"

#include <gtest/gtest.h>

#include <string>

#include "attnd/v1/attention.pb.h"
#include "server/wire/encode.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kMessageBytesMax = 32 << 20;

Engine& TestEngine() {
  static Engine* engine = [] {
    ServerConfig config;
    config.threads = 1;
    config.memory_bytes_max = 256 << 20;
    config.message_bytes_max = kMessageBytesMax;
    return new Engine(config);
  }();
  return *engine;
}

Reservation NothingHeld() { return Reservation(TestEngine().budget.AccountOf("a peer")); }

v1::AttendRequest WithLengths(int count) {
  v1::AttendRequest request;
  for (int i = 0; i < count; ++i) request.mutable_options()->add_q_len(1);
  return request;
}

TEST(ReceiveTest, AMessageOfFewSmallFieldsNeedsNoReservation) {
  v1::AttendRequest request = WithLengths(1000);
  request.mutable_q()->set_data(std::string(1 << 20, 'x'));
  grpc::ByteBuffer buffer = EncodeMessage(request);
  v1::AttendRequest message;
  Reservation held = NothingHeld();
  const absl::StatusOr<RawMessage> raw = Receive(TestEngine(), buffer, message, held);
  ASSERT_TRUE(raw.ok()) << raw.status();
  EXPECT_EQ(held.bytes(), 0);
  EXPECT_EQ(message.options().q_len_size(), 1000);
}

TEST(ReceiveTest, ManySmallFieldsAreReservedOnTopOfWhatIsHeld) {
  grpc::ByteBuffer buffer = EncodeMessage(WithLengths(1 << 20));
  {
    Reservation held = NothingHeld();
    ASSERT_TRUE(held.GrowTo("bytes of the message", 1000).ok());
    v1::AttendRequest message;
    const absl::StatusOr<RawMessage> raw = Receive(TestEngine(), buffer, message, held);
    ASSERT_TRUE(raw.ok()) << raw.status();
    EXPECT_GE(held.bytes(), 1000 + static_cast<std::int64_t>(message.SpaceUsedLong()));
    EXPECT_EQ(TestEngine().budget.bytes_used(), held.bytes());
  }
  EXPECT_EQ(TestEngine().budget.bytes_used(), 0);
}

TEST(ReceiveTest, WhatIsFreeNowDecides) {
  Reservation others(TestEngine().budget.AccountOf("another peer"));
  ASSERT_TRUE(others.GrowTo("another problem", TestEngine().budget.bytes_allowed()).ok());
  Reservation held = NothingHeld();
  grpc::ByteBuffer buffer = EncodeMessage(WithLengths(1 << 20));
  v1::AttendRequest message;
  EXPECT_EQ(Receive(TestEngine(), buffer, message, held).status().code(), absl::StatusCode::kResourceExhausted);
  buffer = EncodeMessage(WithLengths(1000));
  EXPECT_TRUE(Receive(TestEngine(), buffer, message, held).ok());
}

TEST(ReceiveTest, SmallFieldsHaveALimit) {
  grpc::ByteBuffer buffer = EncodeMessage(WithLengths(kMessageBytesMax / 8));
  v1::AttendRequest message;
  Reservation held = NothingHeld();
  const absl::Status status = Receive(TestEngine(), buffer, message, held).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find("4194304 allowed (an eighth of message_bytes_max)"), std::string::npos)
      << status;
}

// The longest lists that problems of 65,536 sequences have, with the longest numbers, fit the default flags.
TEST(ReceiveTest, ListsOfManySequencesFit) {
  v1::AttendRequest request;
  for (int i = 0; i < 65536; ++i) {
    request.mutable_options()->add_q_offset(-1);
    request.mutable_options()->add_q_len(-1);
    request.mutable_options()->add_kv_len(-1);
    request.mutable_options()->add_lengths(-1);
  }
  EXPECT_LT(request.ByteSizeLong(), static_cast<std::size_t>(ServerConfig{}.message_bytes_max / 8));
  grpc::ByteBuffer buffer = EncodeMessage(request);
  v1::AttendRequest message;
  Reservation held = NothingHeld();
  const absl::StatusOr<RawMessage> raw = Receive(TestEngine(), buffer, message, held);
  ASSERT_TRUE(raw.ok()) << raw.status();
  EXPECT_EQ(message.SerializeAsString(), request.SerializeAsString());
}

}  // namespace
}  // namespace attnd::server
