// Requests are the bytes that stock protobuf writes, and large tensors are sent from where they lie.
#include "client/encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/proto/random_wire.h"

namespace attnd::client {
namespace {

std::vector<grpc::Slice> Slices(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(message.Dump(&slices).ok());
  return slices;
}

std::string Joined(const grpc::ByteBuffer& message) {
  std::string bytes;
  for (const grpc::Slice& slice : Slices(message)) bytes.append(slice.begin(), slice.end());
  return bytes;
}

// Whether one of the slices is these very bytes, not a copy of them.
bool HasSliceOver(const grpc::ByteBuffer& message, const char* data, std::size_t bytes) {
  for (const grpc::Slice& slice : Slices(message)) {
    if (slice.begin() == reinterpret_cast<const std::uint8_t*>(data) && slice.size() == bytes) return true;
  }
  return false;
}

TEST(EncodeTest, RequestsAreTheBytesThatStockProtobufWrites) {
  std::size_t longest = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    RandomWire random(seed);
    auto request = std::make_shared<v1::AttendRequest>();
    ASSERT_TRUE(request->ParseFromString(random.Message(*v1::AttendRequest::descriptor())));
    EXPECT_EQ(Joined(EncodeAttend(request)), request->SerializeAsString()) << seed;
    v1::AttendStreamRequest opening;
    opening.set_problem_id(seed);
    *opening.mutable_header() = *request;
    EXPECT_EQ(Joined(EncodeHeader(seed, request)), opening.SerializeAsString()) << seed;
    longest = std::max(longest, request->ByteSizeLong());
  }
  EXPECT_GT(longest, 5000u);
}

// Around what is copied and what is not, and around protobuf's buffers.
TEST(EncodeTest, TensorsOfEverySizeArriveWhole) {
  for (std::size_t bytes = 1; bytes < 9000; bytes += bytes % 64 == 1 ? 2 : 31) {
    auto request = std::make_shared<v1::AttendRequest>();
    int number = 0;
    for (v1::Tensor* tensor : {request->mutable_q(), request->mutable_k(), request->mutable_projection()->mutable_w_o(),
                               request->mutable_options()->mutable_mask()}) {
      tensor->add_shape(static_cast<std::int64_t>(bytes));
      tensor->set_data(std::string(bytes + static_cast<std::size_t>(number), static_cast<char>('a' + number)));
      ++number;
    }
    const grpc::ByteBuffer message = EncodeAttend(request);
    EXPECT_EQ(Joined(message), request->SerializeAsString()) << bytes;
    EXPECT_EQ(HasSliceOver(message, request->k().data().data(), request->k().data().size()), bytes + 1 > 4096) << bytes;
  }
}

TEST(EncodeTest, PiecesAreTheBytesThatStockProtobufWritesAndLieInTheTensor) {
  auto request = std::make_shared<v1::AttendRequest>();
  std::string& data = *request->mutable_projection()->mutable_w_q()->mutable_data();
  for (int i = 0; i < 20000; ++i) data.push_back(static_cast<char>(i * 7));
  for (const std::int64_t offset : {0, 1, 5000}) {
    for (const std::int64_t bytes : {1, 4096, 4097, 15000}) {
      v1::AttendStreamRequest stock;
      stock.set_problem_id(300);
      stock.mutable_piece()->set_tensor("projection.w_q");
      stock.mutable_piece()->set_offset_bytes(offset);
      stock.mutable_piece()->set_data(data.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes)));
      const grpc::ByteBuffer message = EncodePiece(300, "projection.w_q", data, offset, bytes, request);
      EXPECT_EQ(Joined(message), stock.SerializeAsString()) << offset << " " << bytes;
      EXPECT_EQ(HasSliceOver(message, data.data() + offset, static_cast<std::size_t>(bytes)), bytes > 4096);
    }
  }
}

TEST(EncodeTest, AMessageKeepsItsRequestAlive) {
  auto request = std::make_shared<v1::AttendRequest>();
  request->mutable_q()->set_data(std::string(10000, 'q'));
  const std::string right = request->SerializeAsString();
  const std::weak_ptr<v1::AttendRequest> seen = request;
  grpc::ByteBuffer message = EncodeAttend(request);
  grpc::ByteBuffer piece = EncodePiece(1, "q", request->q().data(), 0, 10000, request);
  request.reset();
  EXPECT_FALSE(seen.expired());
  EXPECT_EQ(Joined(message), right);
  message.Clear();
  EXPECT_FALSE(seen.expired());
  piece.Clear();
  EXPECT_TRUE(seen.expired());
}

}  // namespace
}  // namespace attnd::client
