#include "server/block_sink.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "attnd/v1/attention.pb.h"
#include "tests/proto/messages.h"

namespace attnd::server {
namespace {

RowBlock MakeBlock(std::int64_t rows, std::int64_t columns, DType dtype = DType::kFloat32) {
  RowBlock block;
  block.kind = OutputKind::kWeights;
  block.dtype = dtype;
  block.batch = 1;
  block.head = 2;
  block.first_row = 10;
  block.rows = rows;
  block.columns = columns;
  return block;
}

// Slices follow one another without gaps, none is larger than allowed, and each says where it belongs.
TEST(SliceBlockTest, CoversEveryRowAndColumnOnce) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kFloat64}) {
    for (const std::int64_t rows : {0, 1, 2, 7, 128}) {
      for (const std::int64_t columns : {0, 1, 3, 1023, 1024, 1025, 5000}) {
        const RowBlock block = MakeBlock(rows, columns, dtype);
        const std::int64_t element = ElementBytes(dtype);
        std::int64_t next = 0;
        for (const BlockSlice& slice : SliceBlock(block, 4096)) {
          EXPECT_EQ(slice.offset_bytes, next);
          EXPECT_EQ(slice.offset_bytes, ((slice.first_row - 10) * columns + slice.first_column) * element);
          EXPECT_EQ(slice.bytes, slice.rows * slice.columns * element);
          EXPECT_LE(slice.bytes, 4096);
          EXPECT_GT(slice.bytes, 0);
          EXPECT_TRUE(slice.rows == 1 || (slice.first_column == 0 && slice.columns == columns));
          next += slice.bytes;
        }
        EXPECT_EQ(next, rows * columns * element);
      }
    }
  }
}

TEST(SliceBlockTest, SeveralRowsShareASliceWhereTheyFit) {
  EXPECT_EQ(SliceBlock(MakeBlock(128, 64), 1 << 20).size(), 1u);
  EXPECT_EQ(SliceBlock(MakeBlock(128, 64), 4096).size(), 8u);  // 16 rows of 256 bytes each
  EXPECT_EQ(SliceBlock(MakeBlock(2, 1025), 4096).size(), 4u);  // 1024 columns and 1, twice
}

class CollectingWriter : public BlockWriter {
 public:
  void WriteBlock(grpc::ByteBuffer message) override {
    v1::AttendStreamResponse parsed;
    ASSERT_TRUE(ParseStock(message, parsed));
    blocks.push_back(parsed);
  }
  bool HasRoom() const override { return room; }
  std::vector<v1::AttendStreamResponse> blocks;
  bool room = true;
};

TEST(BlockSinkTest, RowsLeaveAsTheyWereWritten) {
  CollectingWriter writer;
  BlockSink sink(5, 4096, writer);
  const RowBlock block = MakeBlock(3, 1500);
  const RowSpan span = sink.Open(block);
  std::string all;
  for (std::int64_t row = 0; row < 3; ++row) {
    std::vector<float> values(1500);
    for (std::size_t column = 0; column < values.size(); ++column)
      values[column] = static_cast<float>(row * 1500) + static_cast<float>(column);
    std::memcpy(span.data + row * span.stride_bytes, values.data(), 6000);
    all.append(reinterpret_cast<const char*>(values.data()), 6000);
  }
  sink.Close(block, span);
  std::string came;
  for (const v1::AttendStreamResponse& response : writer.blocks) {
    EXPECT_EQ(response.problem_id(), 5u);
    EXPECT_EQ(response.block().kind(), v1::OUTPUT_KIND_WEIGHTS);
    EXPECT_EQ(response.block().batch(), 1);
    EXPECT_EQ(response.block().head(), 2);
    came += response.block().data();
  }
  EXPECT_EQ(writer.blocks.size(), 6u);
  EXPECT_EQ(came, all);
  EXPECT_EQ(sink.bytes_written(), 18000);
}

TEST(BlockSinkTest, DroppedRowsAreNotShown) {
  CollectingWriter writer;
  BlockSink sink(5, 4096, writer);
  const RowBlock block = MakeBlock(1, 4);
  sink.Drop(block, sink.Open(block));
  EXPECT_TRUE(writer.blocks.empty());
  writer.room = false;
  EXPECT_FALSE(sink.HasRoom());
}

}  // namespace
}  // namespace attnd::server
