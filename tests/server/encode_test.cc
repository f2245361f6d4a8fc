// Answers are written by hand around the tensors' bytes: stock protobuf must read them back.
#include "server/wire/encode.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/wire/status.h"
#include "tests/proto/messages.h"

namespace attnd::server {
namespace {

Problem MakeProblem(std::int64_t rows, std::vector<OutputKind> outputs) {
  ProblemInputs inputs;
  inputs.q = InputTensor{DType::kFloat32, {1, 2, rows, 4}, nullptr};
  inputs.k = InputTensor{DType::kFloat32, {1, 2, 3, 4}, nullptr};
  inputs.v = InputTensor{DType::kFloat32, {1, 2, 3, 5}, nullptr};
  inputs.outputs = std::move(outputs);
  absl::StatusOr<Problem> problem = Problem::Create(inputs, ProblemLimits{});
  EXPECT_TRUE(problem.ok()) << problem.status();
  return *std::move(problem);
}

OwnedBytes MakeBytes(std::int64_t count, char fill) {
  auto bytes = std::make_shared<std::string>(static_cast<std::size_t>(count), fill);
  return {bytes, reinterpret_cast<const std::byte*>(bytes->data()), count};
}

TEST(EncodeTest, AnAnswerReadsBackAsItWasMeant) {
  // Small outputs are gathered, large ones are slices of their own: both sizes.
  for (const std::int64_t rows : {1, 7, 4000}) {
    const Problem problem = MakeProblem(rows, {OutputKind::kLse, OutputKind::kWeights});
    v1::Statistics statistics;
    statistics.set_flops(42);
    statistics.add_q_offset(-1);
    grpc::ByteBuffer buffer = EncodeAttendResponse(problem,
                                                   {{OutputKind::kOutput, MakeBytes(2 * rows * 5 * 4, 'o')},
                                                    {OutputKind::kLse, MakeBytes(2 * rows * 4, 'l')},
                                                    {OutputKind::kWeights, MakeBytes(2 * rows * 3 * 4, 'w')}},
                                                   statistics);
    v1::AttendResponse parsed;
    ASSERT_TRUE(ParseStock(buffer, parsed));
    v1::AttendResponse meant;
    meant.mutable_output()->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const std::int64_t size : {std::int64_t{1}, std::int64_t{2}, rows, std::int64_t{5}})
      meant.mutable_output()->add_shape(size);
    meant.mutable_output()->set_data(std::string(static_cast<std::size_t>(2 * rows * 5 * 4), 'o'));
    v1::NamedTensor& lse = *meant.add_extras();
    lse.set_kind(v1::OUTPUT_KIND_LSE);
    lse.mutable_tensor()->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const std::int64_t size : {std::int64_t{1}, std::int64_t{2}, rows}) lse.mutable_tensor()->add_shape(size);
    lse.mutable_tensor()->set_data(std::string(static_cast<std::size_t>(2 * rows * 4), 'l'));
    v1::NamedTensor& weights = *meant.add_extras();
    weights.set_kind(v1::OUTPUT_KIND_WEIGHTS);
    weights.mutable_tensor()->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const std::int64_t size : {std::int64_t{1}, std::int64_t{2}, rows, std::int64_t{3}})
      weights.mutable_tensor()->add_shape(size);
    weights.mutable_tensor()->set_data(std::string(static_cast<std::size_t>(2 * rows * 3 * 4), 'w'));
    *meant.mutable_statistics() = statistics;
    EXPECT_EQ(parsed.SerializeAsString(), meant.SerializeAsString()) << rows;
  }
}

TEST(EncodeTest, AnEmptyAnswerHasItsShape) {
  const Problem problem = MakeProblem(0, {});
  grpc::ByteBuffer buffer = EncodeAttendResponse(problem, {{OutputKind::kOutput, {}}}, {});
  v1::AttendResponse parsed;
  ASSERT_TRUE(ParseStock(buffer, parsed));
  ASSERT_EQ(parsed.output().shape_size(), 4);
  EXPECT_EQ(parsed.output().shape(2), 0);
  EXPECT_TRUE(parsed.output().data().empty());
  EXPECT_TRUE(parsed.has_statistics());
}

TEST(EncodeTest, ABlockReadsBackAndItsMemoryLivesAsLongAsTheMessage) {
  for (const std::int64_t bytes : {4, 4096, 4097, 1 << 20}) {
    OwnedBytes data = MakeBytes(bytes, 'b');
    const std::weak_ptr<const void> alive = data.owner;
    v1::Block head;
    head.set_kind(v1::OUTPUT_KIND_WEIGHTS);
    head.set_dtype(v1::DATA_TYPE_FLOAT32);
    head.set_first_row(3);
    head.set_rows(1);
    head.set_columns(bytes / 4);
    {
      grpc::ByteBuffer buffer = EncodeBlock(7, head, std::move(data));
      v1::AttendStreamResponse parsed;
      ASSERT_TRUE(ParseStock(buffer, parsed));
      EXPECT_EQ(parsed.problem_id(), 7u);
      head.set_data(std::string(static_cast<std::size_t>(bytes), 'b'));
      EXPECT_EQ(parsed.block().SerializeAsString(), head.SerializeAsString());
    }
    EXPECT_TRUE(alive.expired()) << bytes;
  }
}

TEST(EncodeTest, AClosingCarriesItsErrorOrNone) {
  grpc::ByteBuffer good = EncodeClosing(1, absl::OkStatus(), {});
  grpc::ByteBuffer bad = EncodeClosing(2, absl::InvalidArgumentError("k: wrong"), {});
  v1::AttendStreamResponse parsed;
  ASSERT_TRUE(ParseStock(good, parsed));
  EXPECT_TRUE(parsed.has_closing());
  EXPECT_FALSE(parsed.closing().has_error());
  ASSERT_TRUE(ParseStock(bad, parsed));
  EXPECT_EQ(parsed.closing().error().code(), 3);
  EXPECT_EQ(parsed.closing().error().message(), "k: wrong");
}

TEST(EncodeTest, ClosingShapesAreThoseOfBlocks) {
  v1::ProblemClosing closing;
  AddOutputShapes(MakeProblem(6, {OutputKind::kLse}), closing);
  ASSERT_EQ(closing.outputs_size(), 2);
  EXPECT_EQ(closing.outputs(1).kind(), v1::OUTPUT_KIND_LSE);
  EXPECT_EQ(std::vector<std::int64_t>(closing.outputs(1).shape().begin(), closing.outputs(1).shape().end()),
            (std::vector<std::int64_t>{1, 2, 6, 1}));
}

}  // namespace
}  // namespace attnd::server
