#include "server/wire/status.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <string>

namespace attnd::server {
namespace {

TEST(StatusTest, EveryCodeKeepsItsNumberAndItsWords) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status = ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "words"));
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "words");
    EXPECT_TRUE(status.error_details().empty());
  }
}

TEST(StatusTest, LongWordsAreCut) {
  EXPECT_EQ(ToGrpcStatus(absl::InvalidArgumentError(std::string(100000, 'x'))).error_message().size(), 2048u);
}

// The details are google.rpc.Status, whose third field holds google.rpc.RetryInfo in an Any: read here by field
// numbers.
TEST(StatusTest, ARetryDelayBecomesRetryInfo) {
  const grpc::Status status =
      ToGrpcStatus(WithRetryDelay(absl::ResourceExhaustedError("full"), absl::Milliseconds(1250)));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "full; retry after 1250 ms");
  google::protobuf::UnknownFieldSet fields;
  ASSERT_TRUE(fields.ParseFromString(status.error_details()));
  ASSERT_EQ(fields.field_count(), 3);
  EXPECT_EQ(fields.field(0).varint(), 8u);
  EXPECT_EQ(fields.field(1).length_delimited(), status.error_message());
  google::protobuf::Any any;
  ASSERT_TRUE(any.ParseFromString(fields.field(2).length_delimited()));
  EXPECT_EQ(any.type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  google::protobuf::UnknownFieldSet info;
  ASSERT_TRUE(info.ParseFromString(any.value()));
  ASSERT_EQ(info.field_count(), 1);
  google::protobuf::Duration delay;
  ASSERT_TRUE(delay.ParseFromString(info.field(0).length_delimited()));
  EXPECT_EQ(delay.seconds(), 1);
  EXPECT_EQ(delay.nanos(), 250000000);
}

TEST(StatusTest, AFailedAllocationIsNoCrash) {
  const absl::Status status = CatchBadAlloc([]() -> absl::Status { throw std::bad_alloc(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(CatchBadAlloc([] { return absl::OkStatus(); }).ok());
}

}  // namespace
}  // namespace attnd::server
