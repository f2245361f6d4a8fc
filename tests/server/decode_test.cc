// Malformed requests, field by field: each is refused with its own words, and the valid one beside them is not.
#include "server/wire/decode.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/problem.h"
#include "server/wire/encode.h"
#include "tests/proto/messages.h"

namespace attnd::server {
namespace {

v1::Tensor MakeTensor(v1::DataType dtype, std::vector<std::int64_t> shape, std::size_t bytes) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (const std::int64_t size : shape) tensor.add_shape(size);
  tensor.set_data(std::string(bytes, '\0'));
  return tensor;
}

v1::AttendRequest ValidRequest() {
  v1::AttendRequest request;
  *request.mutable_q() = MakeTensor(v1::DATA_TYPE_FLOAT32, {1, 1, 4, 64}, 1024);
  *request.mutable_k() = MakeTensor(v1::DATA_TYPE_FLOAT16, {1, 1, 3, 64}, 384);
  *request.mutable_v() = MakeTensor(v1::DATA_TYPE_BFLOAT16, {1, 1, 3, 8}, 48);
  *request.mutable_options()->mutable_mask() = MakeTensor(v1::DATA_TYPE_BOOL, {4, 3}, 12);
  return request;
}

// A request that went over the wire, with what its tensors point to.
struct Read {
  ProblemInputs inputs;
  std::vector<AlignedBuffer<std::byte>> tensors;
  v1::Priority priority;
};

absl::StatusOr<Read> ReadProblem(const v1::AttendRequest& request, DataRule rule) {
  grpc::ByteBuffer buffer = EncodeMessage(request);
  absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *request.GetDescriptor(), kNoSkeletonLimit);
  if (!raw.ok()) return raw.status();
  v1::AttendRequest message;
  if (absl::Status status = raw->ParseSkeleton(message); !status.ok()) return status;
  absl::StatusOr<DecodedProblem> decoded = DecodeProblem(message, rule);
  if (!decoded.ok()) return decoded.status();
  std::vector<AlignedBuffer<std::byte>> tensors = CopyTensors(*raw, decoded->came, decoded->inputs);
  return Read{std::move(decoded->inputs), std::move(tensors), decoded->priority};
}

// `message` with one more field that the contract does not have.
template <typename Message>
void AddUnknownField(Message& message, int number) {
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(number, 1);
}

struct Malformed {
  const char* name;
  std::function<void(v1::AttendRequest&)> spoil;
  const char* text;
};

const std::vector<Malformed>& MalformedRequests() {
  static const auto* table = new std::vector<Malformed>{
      {"one byte less", [](v1::AttendRequest& r) { r.mutable_q()->mutable_data()->pop_back(); },
       "q: 1023 bytes, expected 1024 for float32 [1,1,4,64]"},
      {"one byte more", [](v1::AttendRequest& r) { r.mutable_q()->mutable_data()->push_back('x'); },
       "q: 1025 bytes, expected 1024 for float32 [1,1,4,64]"},
      {"one element less", [](v1::AttendRequest& r) { r.mutable_q()->mutable_data()->resize(1020); },
       "q: 1020 bytes, expected 1024 for float32 [1,1,4,64]"},
      {"no bytes", [](v1::AttendRequest& r) { r.mutable_k()->clear_data(); },
       "k: 0 bytes, expected 384 for float16 [1,1,3,64]"},
      {"a row more", [](v1::AttendRequest& r) { r.mutable_v()->set_shape(2, 4); },
       "v: 48 bytes, expected 64 for bfloat16 [1,1,4,8]"},
      {"a row less", [](v1::AttendRequest& r) { r.mutable_v()->set_shape(2, 2); },
       "v: 48 bytes, expected 32 for bfloat16 [1,1,2,8]"},
      {"bytes without elements", [](v1::AttendRequest& r) { r.mutable_v()->set_shape(0, 0); },
       "v: 48 bytes, expected 0 for bfloat16 [0,1,3,8]"},
      {"negative size", [](v1::AttendRequest& r) { r.mutable_q()->set_shape(2, -4); },
       "q: shape [1,1,-4,64], expected sizes of at least 0"},
      {"smallest size",
       [](v1::AttendRequest& r) { r.mutable_q()->set_shape(2, std::numeric_limits<std::int64_t>::min()); },
       "q: shape [1,1,-9223372036854775808,64], expected sizes of at least 0"},
      {"bytes overflow", [](v1::AttendRequest& r) { r.mutable_q()->set_shape(2, std::int64_t{1} << 55); },
       "q: shape [1,1,36028797018963968,64] of float32 is more bytes than a 64-bit integer counts"},
      {"product wraps to what came",
       [](v1::AttendRequest& r) {
         r.mutable_q()->set_shape(0, (std::int64_t{1} << 54) + 1);
         r.mutable_q()->set_shape(1, std::int64_t{1} << 8);
       },
       "q: shape [18014398509481985,256,4,64] of float32 is more bytes than a 64-bit integer counts"},
      {"rank",
       [](v1::AttendRequest& r) {
         for (int i = 0; i < 5; ++i) r.mutable_q()->add_shape(1);
       },
       "q: rank 9, expected at most 4"},
      {"no dtype", [](v1::AttendRequest& r) { r.mutable_q()->clear_dtype(); },
       "q.dtype: absent, expected one of DataType's values"},
      {"empty tensor", [](v1::AttendRequest& r) { r.mutable_options()->mutable_bias(); },
       "options.bias.dtype: absent, expected one of DataType's values"},
      {"unknown dtype", [](v1::AttendRequest& r) { r.mutable_q()->set_dtype(static_cast<v1::DataType>(77)); },
       "q.dtype: unknown value 77 of DataType"},
      {"negative dtype", [](v1::AttendRequest& r) { r.mutable_k()->set_dtype(static_cast<v1::DataType>(-1)); },
       "k.dtype: unknown value -1 of DataType"},
      {"unknown layout", [](v1::AttendRequest& r) { r.mutable_options()->set_layout(static_cast<v1::Layout>(3)); },
       "options.layout: unknown value 3 of Layout"},
      {"unknown mode", [](v1::AttendRequest& r) { r.mutable_options()->set_mode(static_cast<v1::ComputeMode>(3)); },
       "options.mode: unknown value 3 of ComputeMode"},
      {"unknown output dtype",
       [](v1::AttendRequest& r) { r.mutable_options()->set_output_dtype(static_cast<v1::DataType>(7)); },
       "options.output_dtype: unknown value 7 of DataType"},
      {"unknown rotary style",
       [](v1::AttendRequest& r) { r.mutable_options()->mutable_rotary()->set_style(static_cast<v1::RotaryStyle>(4)); },
       "options.rotary.style: unknown value 4 of RotaryStyle"},
      {"no rotary style", [](v1::AttendRequest& r) { r.mutable_options()->mutable_rotary()->set_rotary_dim(2); },
       "options.rotary.style: absent, expected ROTARY_STYLE_HALF or ROTARY_STYLE_INTERLEAVED"},
      {"unknown output",
       [](v1::AttendRequest& r) {
         r.add_outputs(v1::OUTPUT_KIND_LSE);
         r.add_outputs(static_cast<v1::OutputKind>(11));
       },
       "outputs[1]: unknown value 11 of OutputKind"},
      {"unspecified output", [](v1::AttendRequest& r) { r.add_outputs(v1::OUTPUT_KIND_UNSPECIFIED); },
       "outputs[0]: unspecified, expected one of OutputKind's values"},
      {"too many outputs",
       [](v1::AttendRequest& r) {
         for (int i = 0; i < 12; ++i) r.add_outputs(v1::OUTPUT_KIND_LSE);
       },
       "outputs: 12, expected each once"},
      {"unknown field", [](v1::AttendRequest& r) { AddUnknownField(r, 99); }, "AttendRequest: unknown field 99"},
      {"unknown field in a tensor", [](v1::AttendRequest& r) { AddUnknownField(*r.mutable_k(), 4); },
       "k: unknown field 4"},
      {"unknown field in options", [](v1::AttendRequest& r) { AddUnknownField(*r.mutable_options(), 1000); },
       "options: unknown field 1000"},
      {"unknown field in rotary",
       [](v1::AttendRequest& r) { AddUnknownField(*r.mutable_options()->mutable_rotary(), 536870911); },
       "options.rotary: unknown field 536870911"},
      {"unknown field in a projection's tensor",
       [](v1::AttendRequest& r) { AddUnknownField(*r.mutable_projection()->mutable_w_o(), 5); },
       "projection.w_o: unknown field 5"},
      {"projection tensor",
       [](v1::AttendRequest& r) {
         *r.mutable_projection()->mutable_w_q() = MakeTensor(v1::DATA_TYPE_FLOAT32, {4, 4}, 63);
       },
       "projection.w_q: 63 bytes, expected 64 for float32 [4,4]"},
      {"positions",
       [](v1::AttendRequest& r) {
         r.mutable_options()->mutable_rotary()->set_style(v1::ROTARY_STYLE_HALF);
         *r.mutable_options()->mutable_rotary()->mutable_q_positions() = MakeTensor(v1::DATA_TYPE_INT64, {1, 4}, 33);
       },
       "options.rotary.q_positions: 33 bytes, expected 32 for int64 [1,4]"},
      {"mask", [](v1::AttendRequest& r) { r.mutable_options()->mutable_mask()->mutable_data()->pop_back(); },
       "options.mask: 11 bytes, expected 12 for bool [4,3]"},
      {"page table",
       [](v1::AttendRequest& r) {
         *r.mutable_options()->mutable_page_table() = MakeTensor(v1::DATA_TYPE_INT64, {1, 3}, 23);
       },
       "options.page_table: 23 bytes, expected 24 for int64 [1,3]"},
      {"unknown field in the page table",
       [](v1::AttendRequest& r) {
         *r.mutable_options()->mutable_page_table() = MakeTensor(v1::DATA_TYPE_INT64, {1, 3}, 24);
         AddUnknownField(*r.mutable_options()->mutable_page_table(), 4);
       },
       "options.page_table: unknown field 4"},
  };
  return *table;
}

TEST(DecodeTest, EveryMalformedRequestIsRefusedInItsOwnWords) {
  for (const Malformed& malformed : MalformedRequests()) {
    v1::AttendRequest request = ValidRequest();
    malformed.spoil(request);
    const absl::Status status = ReadProblem(request, DataRule::kWhole).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << malformed.name;
    EXPECT_EQ(std::string(status.message()), malformed.text) << malformed.name;
  }
}

TEST(DecodeTest, BytesThatAreNoMessage) {
  for (const std::string& bytes :
       {std::string("\xff"), std::string("\x0a\x05\x08", 3), std::string("\x0a\xff\xff\xff\xff\x7f", 6)}) {
    grpc::Slice slice(bytes);
    grpc::ByteBuffer buffer(&slice, 1);
    const absl::Status status = RawMessage::Split(buffer, *v1::AttendRequest::descriptor(), kNoSkeletonLimit).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), "the message is not a valid attnd.v1.AttendRequest");
  }
}

TEST(DecodeTest, EveryTensorIsCopiedToAnAlignedBuffer) {
  v1::AttendRequest request = ValidRequest();
  for (v1::Tensor* tensor :
       {request.mutable_q(), request.mutable_k(), request.mutable_v(), request.mutable_options()->mutable_mask()}) {
    for (std::size_t i = 0; i < tensor->data().size(); ++i) (*tensor->mutable_data())[i] = static_cast<char>(i * 7 + 1);
  }
  absl::StatusOr<Read> read = ReadProblem(request, DataRule::kWhole);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tensors.size(), 4u);
  std::vector<std::string> paths;
  ForEachTensor(read->inputs, [&](absl::string_view path, InputTensor& tensor) {
    paths.emplace_back(path);
    const v1::Tensor& came = path == "q"   ? request.q()
                             : path == "k" ? request.k()
                             : path == "v" ? request.v()
                                           : request.options().mask();
    ASSERT_EQ(TensorBytes(tensor), static_cast<std::int64_t>(came.data().size())) << path;
    EXPECT_EQ(std::memcmp(tensor.data, came.data().data(), came.data().size()), 0) << path;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % 64, 0u) << path;
  });
  EXPECT_EQ(paths, (std::vector<std::string>{"q", "k", "v", "options.mask"}));
  const ProblemInputs& inputs = read->inputs;
  EXPECT_EQ(inputs.q->dtype, DType::kFloat32);
  EXPECT_EQ(inputs.k->dtype, DType::kFloat16);
  EXPECT_EQ(inputs.v->dtype, DType::kBFloat16);
  EXPECT_EQ(inputs.v->shape, (std::vector<std::int64_t>{1, 1, 3, 8}));
  EXPECT_FALSE(inputs.x.has_value());
}

TEST(DecodeTest, ATensorWithoutElementsHasAnAddress) {
  v1::AttendRequest request = ValidRequest();
  request.mutable_v()->set_shape(0, 0);
  request.mutable_v()->clear_data();
  absl::StatusOr<Read> read = ReadProblem(request, DataRule::kWholeOrLater);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_NE(read->inputs.v->data, nullptr);
}

TEST(DecodeTest, OptionsKeepTheirPresence) {
  v1::AttendRequest request = ValidRequest();
  const OptionInputs absent = ReadProblem(request, DataRule::kWhole)->inputs.options;
  EXPECT_FALSE(absent.scale.has_value());
  EXPECT_FALSE(absent.window_left.has_value());
  EXPECT_FALSE(absent.softcap.has_value());
  EXPECT_FALSE(absent.output_dtype.has_value());
  v1::Options& options = *request.mutable_options();
  options.set_scale(0);
  options.set_window_left(0);
  options.set_window_right(7);
  options.set_softcap(0);
  options.set_output_dtype(v1::DATA_TYPE_BFLOAT16);
  options.set_layout(v1::LAYOUT_BNHD);
  options.set_mode(v1::COMPUTE_MODE_REFERENCE);
  options.add_q_offset(-3);
  options.add_sinks(0.5f);
  const OptionInputs given = ReadProblem(request, DataRule::kWhole)->inputs.options;
  EXPECT_EQ(given.scale, 0.0);
  EXPECT_EQ(given.window_left, 0);
  EXPECT_EQ(given.window_right, 7);
  EXPECT_EQ(given.softcap, 0.0);
  EXPECT_EQ(given.output_dtype, DType::kBFloat16);
  EXPECT_EQ(given.layout, Layout::kBNHD);
  EXPECT_TRUE(given.reference);
  EXPECT_EQ(given.q_offset, (std::vector<std::int64_t>{-3}));
  EXPECT_EQ(given.sinks, (std::vector<float>{0.5f}));
}

TEST(DecodeTest, APriorityIsKeptAndOneThatIsNotKnownIsRefused) {
  v1::AttendRequest request = ValidRequest();
  for (const v1::Priority priority : {v1::PRIORITY_UNSPECIFIED, v1::PRIORITY_LOW, v1::PRIORITY_HIGH}) {
    request.set_priority(priority);
    EXPECT_EQ(ReadProblem(request, DataRule::kWhole)->priority, priority);
  }
  request.set_priority(static_cast<v1::Priority>(4));
  EXPECT_EQ(ReadProblem(request, DataRule::kWhole).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DecodeTest, PlanTakesNoData) {
  v1::AttendRequest request = ValidRequest();
  EXPECT_EQ(std::string(ReadProblem(request, DataRule::kNone).status().message()),
            "q.data: 1024 bytes, expected none: Plan takes shapes only");
  request.mutable_q()->clear_data();
  request.mutable_k()->clear_data();
  request.mutable_v()->clear_data();
  request.mutable_options()->mutable_mask()->clear_data();
  EXPECT_TRUE(ReadProblem(request, DataRule::kNone).ok());
}

TEST(DecodeTest, AStreamsHeaderMayLeaveATensorForLater) {
  v1::AttendRequest request = ValidRequest();
  request.mutable_k()->clear_data();
  *request.mutable_options()->mutable_page_table() = MakeTensor(v1::DATA_TYPE_INT64, {1, 2}, 0);
  absl::StatusOr<Read> read = ReadProblem(request, DataRule::kWholeOrLater);
  ASSERT_TRUE(read.ok()) << read.status();
  std::vector<std::string> later, whole;
  ForEachTensor(read->inputs, [&](absl::string_view path, InputTensor& tensor) {
    (tensor.data == nullptr ? later : whole).emplace_back(path);
  });
  EXPECT_EQ(later, (std::vector<std::string>{"k", "options.page_table"}));
  EXPECT_EQ(whole, (std::vector<std::string>{"q", "v", "options.mask"}));
  EXPECT_EQ(TensorBytes(*read->inputs.k), 384);
  request.mutable_k()->set_data("x");
  EXPECT_EQ(std::string(ReadProblem(request, DataRule::kWholeOrLater).status().message()),
            "k: 1 bytes, expected 384 for float16 [1,1,3,64]");
}

TEST(DecodeTest, PeekFindsTheProblemOfAStreamMessage) {
  v1::AttendStreamRequest message;
  message.set_problem_id(std::numeric_limits<std::uint64_t>::max());
  message.mutable_header();
  StreamMessagePeek peek = PeekStreamMessage(EncodeMessage(message));
  EXPECT_EQ(peek.problem_id, std::numeric_limits<std::uint64_t>::max());
  EXPECT_TRUE(peek.is_header);
  message.mutable_piece()->set_data("1");
  EXPECT_FALSE(PeekStreamMessage(EncodeMessage(message)).is_header);
  message.Clear();
  message.mutable_header();
  EXPECT_TRUE(PeekStreamMessage(EncodeMessage(message)).is_header);
  EXPECT_FALSE(PeekStreamMessage(grpc::ByteBuffer()).is_header);
}

}  // namespace
}  // namespace attnd::server
