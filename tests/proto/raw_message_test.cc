// A raw request says what stock protobuf says of the same bytes, however they were encoded and cut into slices.
#include "proto/wire/raw_message.h"

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "attnd/v1/attention.pb.h"
#include "tests/proto/messages.h"
#include "tests/proto/random_wire.h"

namespace attnd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// What a server reads, then what a client reads.
std::vector<const Message*> Types() {
  return {&v1::AttendRequest::default_instance(),  &v1::AttendStreamRequest::default_instance(),
          &v1::PlanRequest::default_instance(),    &v1::InfoRequest::default_instance(),
          &v1::AttendResponse::default_instance(), &v1::AttendStreamResponse::default_instance()};
}

// "refused", or the message's bytes as stock protobuf writes them.
std::string Stock(const Message& type, const std::string& wire) {
  const std::unique_ptr<Message> message(type.New());
  return message->ParseFromString(wire) ? message->SerializeAsString() : "refused";
}

std::string Raw(const Message& type, grpc::ByteBuffer buffer) {
  const std::unique_ptr<Message> message(type.New());
  absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *type.GetDescriptor(), kNoSkeletonLimit);
  EXPECT_EQ(buffer.Length(), 0u);
  if (!raw.ok() || !raw->ParseSkeleton(*message).ok()) return "refused";
  Rejoin(*message, *raw);
  return message->SerializeAsString();
}

grpc::ByteBuffer Whole(const std::string& wire) {
  return CutIntoSlices(wire, [&] { return std::max<std::size_t>(wire.size(), 1); });
}

TEST(RawMessageTest, WhatALegalEncoderSendsIsReadAsStockProtobufReadsIt) {
  std::set<std::string> answers;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    RandomWire random(seed);
    for (const Message* type : Types()) {
      const std::string wire = random.Message(*type->GetDescriptor());
      const std::string expected = Stock(*type, wire);
      EXPECT_NE(expected, "refused") << seed;
      answers.insert(expected);
      // As it came, and as stock protobuf writes the same message.
      for (const std::string& bytes : {wire, expected}) {
        EXPECT_EQ(Raw(*type, Whole(bytes)), expected) << seed;
        EXPECT_EQ(Raw(*type, CutIntoSlices(bytes, [] { return 1; })), expected) << seed;
        EXPECT_EQ(Raw(*type, CutIntoSlices(bytes, [&] { return 1 + random.Below(100); })), expected) << seed;
      }
    }
  }
  EXPECT_GT(answers.size(), 3000u);
}

TEST(RawMessageTest, CutShortOrSpoiledItIsJudgedAsStockProtobufJudgesIt) {
  const google::protobuf::LogSilencer silence;  // protobuf writes of each string that is not UTF-8
  int refused = 0, taken = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RandomWire random(seed);
    for (const Message* type : Types()) {
      const std::string wire = random.Message(*type->GetDescriptor());
      for (std::size_t at = 0; at < wire.size(); ++at) {
        std::string spoiled = wire;
        spoiled[at] = static_cast<char>(spoiled[at] ^ (1 << random.Below(8)));
        for (const std::string& bytes : {wire.substr(0, at), spoiled}) {
          const std::string expected = Stock(*type, bytes);
          (expected == "refused" ? refused : taken) += 1;
          EXPECT_EQ(Raw(*type, CutIntoSlices(bytes, [&] { return 1 + random.Below(9); })), expected)
              << seed << " " << at;
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(taken, 1000);
}

// Encodings that are easily judged otherwise than by protobuf.
TEST(RawMessageTest, TheEdgesOfTheWireFormat) {
  const auto deep = [](int groups) { return std::string(groups, '\x7b') + std::string(groups, '\x7c'); };  // field 15
  const std::string q_of_1("\x0a\x03\x1a\x01x", 5);
  struct {
    const char* name;
    std::string wire;
    bool taken;
  } const cases[] = {
      {"nothing", "", true},
      {"q", q_of_1, true},
      {"a tag of five bytes", std::string("\x8a\x80\x80\x80\x00\x03\x1a\x01x", 9), true},
      {"a tag of six bytes", std::string("\x8a\x80\x80\x80\x80\x00\x03\x1a\x01x", 10), false},
      {"a length of five bytes", std::string("\x0a\x83\x80\x80\x80\x00\x1a\x01x", 9), true},
      {"a length of six bytes", std::string("\x0a\x83\x80\x80\x80\x80\x00\x1a\x01x", 10), false},
      {"data's length of five bytes", std::string("\x0a\x07\x1a\x81\x80\x80\x80\x00x", 9), true},
      {"data's length of six bytes", std::string("\x0a\x08\x1a\x81\x80\x80\x80\x80\x00x", 10), false},
      {"a length beyond 32 bits", std::string("\x0a\x83\x80\x80\x80\x10\x1a\x01x", 9), false},
      {"a number of ten bytes", std::string("\x0a\x0b\x08\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00", 13), true},
      {"a number of eleven bytes", std::string("\x0a\x0c\x08\x81\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", 14), false},
      {"data beyond its tensor", std::string("\x0a\x03\x1a\x02xy", 6), false},
      {"a tensor beyond its message", std::string("\x2a\x04\x1a\x03\x1a\x01x", 7), false},
      {"data cut short", std::string("\x0a\x04\x1a\x05xy", 6), false},
      {"field number 0", std::string("\x02\x00", 2), false},
      {"tag 0", std::string("\x00", 1), false},
      {"tag 0 in a tensor", std::string("\x0a\x01\x00", 3), false},
      {"wire type 6", std::string("\x0e\x00", 2), false},
      {"wire type 7", std::string("\x0f\x00", 2), false},
      {"an end without its group", std::string("\x7c", 1), false},
      {"an end without its group in a tensor", std::string("\x0a\x01\x7c", 3), false},
      {"a group", deep(1), true},
      {"a group that ends as another", std::string("\x7b\x6c", 2), false},
      {"a group without an end", std::string("\x7b", 1), false},
      {"a group that ends beyond its tensor", std::string("\x0a\x01\x7b\x7c", 4), false},
      {"q as a group", std::string("\x0b\x1a\x01x\x0c", 5), true},
      {"data as a number", std::string("\x0a\x02\x18\x01", 4), true},
      {"groups 99 deep", deep(99), true},
      {"groups 101 deep", deep(101), false},
      {"groups 100,000 deep", deep(100000), false},
  };
  for (const auto& edge : cases) {
    const std::string stock = Stock(v1::AttendRequest(), edge.wire);
    EXPECT_EQ(stock != "refused", edge.taken) << edge.name;
    EXPECT_EQ(Raw(v1::AttendRequest(), Whole(edge.wire)), stock) << edge.name;
    EXPECT_EQ(Raw(v1::AttendRequest(), CutIntoSlices(edge.wire, [] { return 1; })), stock) << edge.name;
  }
}

TEST(RawMessageTest, TheLastDataCountsAndAOneofHasOneMember) {
  v1::AttendRequest first, second;
  first.mutable_q()->set_dtype(v1::DATA_TYPE_FLOAT32);
  first.mutable_q()->set_data("first");
  first.mutable_k()->set_data("stays");
  second.mutable_q()->set_data("later");
  second.mutable_k()->add_shape(3);
  const std::string emptied("\x12\x02\x1a\x00", 4);  // k.data = ""
  const auto read = [](const std::string& wire, Message& message) {
    grpc::ByteBuffer buffer = Whole(wire);
    absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *message.GetDescriptor(), kNoSkeletonLimit);
    ASSERT_TRUE(raw.ok() && raw->ParseSkeleton(message).ok());
    Rejoin(message, *raw);
  };
  v1::AttendRequest merged;
  read(first.SerializeAsString() + second.SerializeAsString(), merged);
  EXPECT_EQ(merged.q().data(), "later");
  EXPECT_EQ(merged.q().dtype(), v1::DATA_TYPE_FLOAT32);
  EXPECT_EQ(merged.k().data(), "stays");
  EXPECT_EQ(merged.k().shape_size(), 1);
  read(first.SerializeAsString() + emptied, merged);
  EXPECT_TRUE(merged.has_k());
  EXPECT_EQ(merged.k().data(), "");

  v1::AttendStreamRequest header, piece, cancel, last;
  *header.mutable_header() = first;
  piece.mutable_piece()->set_data("piece");
  cancel.mutable_cancel();
  v1::AttendStreamRequest header_again;
  header_again.mutable_header()->mutable_v()->set_data("v");
  read(header.SerializeAsString() + piece.SerializeAsString() + header_again.SerializeAsString(), last);
  EXPECT_EQ(last.SerializeAsString(), header_again.SerializeAsString());
  read(header.SerializeAsString() + piece.SerializeAsString(), last);
  EXPECT_EQ(last.SerializeAsString(), piece.SerializeAsString());
  read(piece.SerializeAsString() + cancel.SerializeAsString(), last);
  EXPECT_EQ(last.SerializeAsString(), cancel.SerializeAsString());
}

TEST(RawMessageTest, ASkeletonHoldsNoTensorBytesAndIsBounded) {
  v1::AttendRequest request;
  for (v1::Tensor* tensor : {request.mutable_q(), request.mutable_options()->mutable_rotary()->mutable_q_positions()}) {
    tensor->set_data(std::string(1 << 20, 'x'));
  }
  grpc::ByteBuffer buffer = Whole(request.SerializeAsString());
  absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *request.GetDescriptor(), 100);
  ASSERT_TRUE(raw.ok()) << raw.status();
  // A tag and a length of five bytes for each of four messages, a tag, a length and sixteen bytes for each data.
  EXPECT_EQ(raw->skeleton_bytes(), 4 * 6 + 2 * 18);
  for (int i = 0; i < 50; ++i) request.mutable_options()->add_q_len(1);  // packed: 52 bytes
  buffer = Whole(request.SerializeAsString());
  const absl::Status status = RawMessage::Split(buffer, *request.GetDescriptor(), 100).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(status.message()), "bytes of the message beside the tensors': 112 needed, 100 allowed");
  // Beyond the limit bytes that are no message are still that.
  buffer = Whole(request.SerializeAsString() + "\xff");
  EXPECT_EQ(RawMessage::Split(buffer, *request.GetDescriptor(), 100).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A slice that looks, when it is given back, at what was copied so far.
struct WatchedSlice {
  std::string bytes;
  const std::string* copy = nullptr;
  std::string copied_then;
  int given_back = 0;

  static void GiveBack(void* self) {
    auto& slice = *static_cast<WatchedSlice*>(self);
    slice.copied_then = *slice.copy;
    ++slice.given_back;
  }
};

TEST(RawMessageTest, EachSliceIsGivenBackWhenItsBytesAreCopied) {
  v1::AttendRequest request;
  request.mutable_q()->set_data(std::string(300, 'q'));
  const std::string wire = request.SerializeAsString();
  std::string copy(300, '.');
  std::vector<WatchedSlice> watched(3);
  std::vector<grpc::Slice> slices;
  for (std::size_t i = 0; i < watched.size(); ++i) {
    watched[i].bytes = wire.substr(i * 102, 102);
    watched[i].copy = &copy;
    slices.emplace_back(watched[i].bytes.data(), watched[i].bytes.size(), &WatchedSlice::GiveBack, &watched[i]);
  }
  grpc::ByteBuffer buffer(slices.data(), slices.size());
  slices.clear();
  absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *request.GetDescriptor(), kNoSkeletonLimit);
  ASSERT_TRUE(raw.ok() && raw->ParseSkeleton(request).ok());
  for (const WatchedSlice& slice : watched) EXPECT_EQ(slice.given_back, 0);
  raw->CopyOut({{ExtentOf(request.q().data()), reinterpret_cast<std::byte*>(copy.data())}});
  EXPECT_EQ(copy, std::string(300, 'q'));
  const std::size_t head = wire.size() - 300;
  for (std::size_t i = 0; i < watched.size(); ++i) {
    EXPECT_EQ(watched[i].given_back, 1) << i;
    const std::size_t copied = std::min<std::size_t>(102 * (i + 1) - head, 300);
    EXPECT_EQ(watched[i].copied_then, std::string(copied, 'q') + std::string(300 - copied, '.')) << i;
  }
}

TEST(RawMessageTest, ARepeatedMessagesBytesAreNoPartOfASkeleton) {
  v1::AttendResponse response;
  for (int i = 0; i < 3; ++i) {
    v1::Tensor& tensor = *response.add_extras()->mutable_tensor();
    tensor.set_data(std::string(1000 + static_cast<std::size_t>(i), static_cast<char>('a' + i)));
  }
  grpc::ByteBuffer buffer = CutIntoSlices(response.SerializeAsString(), [] { return 100; });
  absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *response.GetDescriptor(), kNoSkeletonLimit);
  ASSERT_TRUE(raw.ok()) << raw.status();
  EXPECT_EQ(raw->skeleton_bytes(), 3 * (2 * 6 + 18));
  v1::AttendResponse read;
  ASSERT_TRUE(raw->ParseSkeleton(read).ok());
  std::vector<DataExtent> extents;
  for (int i = 2; i >= 0; --i) extents.push_back(ExtentOf(read.extras(i).tensor().data()));
  std::vector<std::string> taken(3);
  raw->TakeOut(extents, [&](std::size_t index, absl::string_view part) {
    EXPECT_LE(part.size(), 100u);
    taken[index].append(part.data(), part.size());
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(taken[static_cast<std::size_t>(2 - i)], response.extras(i).tensor().data());
}

}  // namespace
}  // namespace attnd
