// What becomes of a request that is read when the allocator says no, at each of its requests in turn: a clean refusal,
// nothing kept, and the next one is read as ever.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "proto/wire/raw_message.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"
#include "server/wire/status.h"
#include "tests/faults/failing_new.h"
#include "tests/proto/messages.h"

namespace attnd::server {
namespace {

v1::Tensor Floats(std::vector<std::int64_t> shape, char fill) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DATA_TYPE_FLOAT32);
  std::size_t bytes = 4;
  for (const std::int64_t size : shape) {
    tensor.add_shape(size);
    bytes *= static_cast<std::size_t>(size);
  }
  tensor.set_data(std::string(bytes, fill));
  return tensor;
}

// Tensors small, large (a block of the pool) and nested, lists, and a text.
v1::AttendStreamRequest Request() {
  v1::AttendStreamRequest message;
  message.set_problem_id(7);
  v1::AttendRequest& request = *message.mutable_header();
  *request.mutable_x() = Floats({2, 5, 16}, '\x11');
  v1::Projection& projection = *request.mutable_projection();
  projection.set_q_heads(2);
  projection.set_kv_heads(2);
  *projection.mutable_w_q() = Floats({16, 8192}, '\x22');
  *projection.mutable_w_k() = Floats({16, 8192}, '\x33');
  *projection.mutable_w_v() = Floats({16, 8}, '\x44');
  for (int b = 0; b < 2; ++b) request.mutable_options()->add_lengths(4 + b);
  for (int h = 0; h < 2; ++h) request.mutable_options()->add_sinks(0.5F);
  *request.mutable_options()->mutable_bias() = Floats({5}, '\x00');
  request.add_outputs(v1::OUTPUT_KIND_WEIGHTS);
  return message;
}

struct Whole {
  std::vector<std::string> tensors;
  std::int64_t rows = 0;
};

// The way of one message from slices to a problem.
absl::Status ReadOnce(const grpc::ByteBuffer& slices, Whole& whole) {
  return CatchBadAlloc([&]() -> absl::Status {
    grpc::ByteBuffer buffer = slices;
    v1::AttendStreamRequest message;
    absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *message.GetDescriptor(), std::int64_t{1} << 20);
    if (!raw.ok()) return raw.status();
    if (absl::Status status = raw->ParseSkeleton(message); !status.ok()) return status;
    absl::StatusOr<DecodedProblem> decoded = DecodeProblem(message.header(), DataRule::kWhole);
    if (!decoded.ok()) return decoded.status();
    const std::vector<AlignedBuffer<std::byte>> tensors = CopyTensors(*raw, decoded->came, decoded->inputs);
    const absl::StatusOr<Problem> problem = Problem::Create(decoded->inputs, {});
    if (!problem.ok()) return problem.status();
    if (absl::Status status = problem->CheckContents(); !status.ok()) return status;
    for (const AlignedBuffer<std::byte>& tensor : tensors) {
      whole.tensors.emplace_back(reinterpret_cast<const char*>(tensor.data()),
                                 static_cast<std::size_t>(tensor.count()));
    }
    whole.rows = problem->q_rows;
    return absl::OkStatus();
  });
}

TEST(DecodeAllocationTest, EachAllocationMayFail) {
  const std::string bytes = Request().SerializeAsString();
  for (const std::size_t slice_bytes : {std::size_t{100}, std::size_t{16384}, bytes.size()}) {
    {
      const std::int64_t count = 1;  // the words of the refusal need some
      const grpc::ByteBuffer buffer = CutIntoSlices(bytes, [slice_bytes] { return slice_bytes; });
      Whole right;
      ASSERT_TRUE(ReadOnce(buffer, right).ok()) << ReadOnce(buffer, right);
      ASSERT_EQ(right.tensors.size(), 5u);
      std::int64_t failed = 0;
      for (std::int64_t n = 1;; ++n) {
        Whole whole;
        absl::Status status;
        bool met = false;
        {
          const FailingAllocation failing(n, count);
          status = ReadOnce(buffer, whole);
          met = failing.HasFailed();
        }
        if (!status.ok()) {
          ++failed;
          ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
          whole = Whole();
          ASSERT_TRUE(ReadOnce(buffer, whole).ok());
        }
        ASSERT_EQ(whole.tensors, right.tensors) << "after allocation " << n;
        ASSERT_EQ(whole.rows, right.rows);
        if (!met) break;
      }
      EXPECT_GT(failed, 20);
    }
  }
}

}  // namespace
}  // namespace attnd::server
