// Replies say what stock protobuf says of the same bytes, however they are cut; those that are none are INTERNAL.
#include "client/decode.h"

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/proto/messages.h"
#include "tests/proto/random_wire.h"

namespace attnd::client {
namespace {

Array Waves(std::vector<std::int64_t> shape, double phase) {
  Array array = *Array::Zeros(DType::kFloat32, std::move(shape));
  for (std::int64_t i = 0; i < array.elements(); ++i) array.Set(i, std::sin(phase + 0.7 * static_cast<double>(i)));
  return array;
}

// [B, N, d], so that answers lose a dimension; 300 elements of output, so that converted ones are cut too.
Problem Asked(DType wire_dtype = DType::kFloat32) {
  Problem problem = *Problem::FromQkv(Waves({2, 5, 3}, 0), Waves({2, 7, 3}, 1), Waves({2, 7, 30}, 2));
  problem.Want(v1::OUTPUT_KIND_WEIGHTS);
  problem.Want(v1::OUTPUT_KIND_LSE);
  EXPECT_TRUE(problem.SetWireDType(wire_dtype).ok());
  return problem;
}

v1::AttendResponse Reply(DType output_dtype = DType::kFloat32) {
  v1::AttendResponse reply;
  *reply.mutable_output() = ToTensor(*Convert(Waves({2, 1, 5, 30}, 3), output_dtype));
  v1::NamedTensor& weights = *reply.add_extras();
  weights.set_kind(v1::OUTPUT_KIND_WEIGHTS);
  *weights.mutable_tensor() = ToTensor(Waves({2, 1, 5, 7}, 4));
  v1::NamedTensor& lse = *reply.add_extras();
  lse.set_kind(v1::OUTPUT_KIND_LSE);
  *lse.mutable_tensor() = ToTensor(Waves({2, 1, 5}, 5));
  reply.mutable_statistics()->set_flops(4000);
  return reply;
}

// The answer as text: the whole-array steps over what stock protobuf parsed.
std::string Text(v1::OutputKind kind, const Array& array) {
  std::string text = Name(kind) + " " + std::string(Name(array.dtype)) + " " + ShapeText(array.shape) + " ";
  return text + array.bytes;
}
std::string Stock(const Problem& problem, const std::string& wire) {
  v1::AttendResponse reply;
  if (!reply.ParseFromString(wire)) return "refused";
  std::string text;
  const auto add = [&](v1::OutputKind kind, const v1::Tensor& tensor) {
    absl::StatusOr<Array> array = ToArray(tensor);
    if (!array.ok()) return false;
    absl::StatusOr<std::vector<std::int64_t>> shape = problem.InCallersRank(kind, array->shape);
    if (!shape.ok()) return false;
    array->shape = *shape;
    array = Convert(*array, problem.AnswerDType(kind, array->dtype));
    if (array.ok()) text += Text(kind, *array);
    return array.ok();
  };
  if (!add(v1::OUTPUT_KIND_OUTPUT, reply.output())) return "refused";
  for (const v1::NamedTensor& extra : reply.extras()) {
    if (!add(extra.kind(), extra.tensor())) return "refused";
  }
  return text + reply.statistics().SerializeAsString();
}

std::string Decoded(const Problem& problem, grpc::ByteBuffer buffer) {
  const absl::StatusOr<Answer> answer = DecodeAnswer(problem, buffer);
  EXPECT_EQ(buffer.Length(), 0u);
  if (!answer.ok()) {
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kInternal) << answer.status();
    return "refused";
  }
  std::string text = Text(v1::OUTPUT_KIND_OUTPUT, answer->output);
  for (const auto& [kind, array] : answer->extras) text += Text(kind, array);
  return text + answer->statistics.SerializeAsString();
}

TEST(DecodeTest, AReplyReadsTheSameHoweverItIsCut) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    const Problem problem = Asked(dtype);
    const std::string wire = Reply(dtype).SerializeAsString();
    const std::string right = Stock(problem, wire);
    ASSERT_NE(right, "refused");
    const absl::StatusOr<Answer> answer = [&] {
      grpc::ByteBuffer buffer = CutIntoSlices(wire, [&] { return wire.size(); });
      return DecodeAnswer(problem, buffer);
    }();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->output.shape, (std::vector<std::int64_t>{2, 5, 30}));
    EXPECT_EQ(answer->output.bytes, Convert(*Convert(Waves({300}, 3), dtype), DType::kFloat32)->bytes);
    EXPECT_EQ(answer->extras[1].second.bytes, Waves({10}, 5).bytes);
    for (std::size_t size = 1; size <= 40; ++size) {
      EXPECT_EQ(Decoded(problem, CutIntoSlices(wire, [&] { return size; })), right) << size;
    }
    RandomWire random(1);
    for (int round = 0; round < 200; ++round) {
      EXPECT_EQ(Decoded(problem, CutIntoSlices(wire, [&] { return 1 + random.Below(700); })), right) << round;
    }
  }
}

TEST(DecodeTest, CutShortOrSpoiledItIsJudgedAsStockProtobufJudgesIt) {
  const google::protobuf::LogSilencer silence;
  int refused = 0, taken = 0;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Problem problem = Asked(dtype);
    const std::string wire = Reply(dtype).SerializeAsString();
    RandomWire random(2);
    for (std::size_t at = 0; at < wire.size(); ++at) {
      std::string spoiled = wire;
      spoiled[at] = static_cast<char>(spoiled[at] ^ (1 << random.Below(8)));
      for (const std::string& bytes : {wire.substr(0, at), spoiled}) {
        const std::string right = Stock(problem, bytes);
        (right == "refused" ? refused : taken) += 1;
        EXPECT_EQ(Decoded(problem, CutIntoSlices(bytes, [&] { return 1 + random.Below(90); })), right) << at;
      }
    }
  }
  EXPECT_GT(refused, 2000);
  EXPECT_GT(taken, 2000);
}

// Fields in any order, tensors in parts, repeated data: whatever a legal encoder of the reply may send.
TEST(DecodeTest, RepliesOfOtherEncodersAreReadAsStockProtobufReadsThem) {
  const Problem problem = Asked();
  v1::AttendResponse whole = Reply(), late;
  late.mutable_output()->Swap(whole.mutable_output());
  whole.clear_output();
  v1::AttendResponse longer_before = late;
  longer_before.mutable_output()->clear_shape();
  longer_before.mutable_output()->set_data(std::string(5000, 'x'));
  for (const std::string& wire :
       {whole.SerializeAsString() + late.SerializeAsString(),
        longer_before.SerializeAsString() + whole.SerializeAsString() + late.SerializeAsString()}) {
    const std::string right = Stock(problem, wire);
    EXPECT_NE(right, "refused");
    EXPECT_EQ(Decoded(problem, CutIntoSlices(wire, [] { return 64; })), right);
  }
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    RandomWire random(seed);
    // After a good output, so that what comes next is looked at.
    const std::string wire = late.SerializeAsString() + random.Message(*v1::AttendResponse::descriptor());
    EXPECT_EQ(Decoded(problem, CutIntoSlices(wire, [&] { return 1 + random.Below(50); })), Stock(problem, wire))
        << seed;
  }
}

TEST(DecodeTest, AnOutputThatCannotBecomeTheCallersTypeIsRefused) {
  const Problem problem = Asked(DType::kFloat16);
  v1::AttendResponse reply = Reply(DType::kFloat16);
  *reply.mutable_output() = ToTensor(Array{DType::kBool, {2, 1, 5, 30}, std::string(300, 1)});
  grpc::ByteBuffer buffer = CutIntoSlices(reply.SerializeAsString(), [] { return 1000; });
  EXPECT_EQ(DecodeAnswer(problem, buffer).status(), absl::InternalError("the server answered output as bool"));
}

TEST(DecodeTest, BytesThatAreNoReplySaySo) {
  v1::AttendStreamResponse message;
  for (const std::string& bytes : {std::string("\xff\xff"), std::string("\x12\x7f"), std::string(1000, '\x12')}) {
    grpc::ByteBuffer buffer = CutIntoSlices(bytes, [] { return 1; });
    EXPECT_EQ(SplitReply(buffer, message).status(),
              absl::InternalError("the server sent no valid attnd.v1.AttendStreamResponse"));
  }
}

}  // namespace
}  // namespace attnd::client
