// The Open Inference Protocol's names, requests, answers and sums, without a server.
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/inference/decode.h"
#include "server/inference/encode.h"
#include "server/inference/fields.h"
#include "server/inference/model_statistics.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"
#include "tests/proto/messages.h"

namespace attnd::server {
namespace {

using inference::ModelInferRequest;

const Model kAttentionModel = {ModelKind::kAttention, "attention", "1"};

ModelInferRequest FromText(const std::string& text) {
  ModelInferRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request));
  return request;
}

struct Read {
  InferProblem problem;
  std::unique_ptr<RawMessage> raw;
};

// A request that went over the wire.
absl::StatusOr<Read> ReadRequest(const ModelInferRequest& sent, const Model& model, Reservation& held) {
  grpc::ByteBuffer buffer = EncodeMessage(sent);
  absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *sent.GetDescriptor(), kNoSkeletonLimit);
  if (!raw.ok()) return raw.status();
  const auto request = std::make_shared<ModelInferRequest>();
  if (absl::Status status = raw->ParseSkeleton(*request); !status.ok()) return status;
  auto kept = std::make_unique<RawMessage>(*std::move(raw));
  absl::StatusOr<InferProblem> problem = DecodeInfer(request, model, *kept, held);
  if (!problem.ok()) return problem.status();
  return Read{*std::move(problem), std::move(kept)};
}

absl::StatusOr<Read> ReadRequest(const std::string& text) {
  Reservation held;
  return ReadRequest(FromText(text), kAttentionModel, held);
}

TEST(InferenceTest, RawAndTypedContentsAreTheSameTensor) {
  const std::string head = "inputs { name: 'q' datatype: 'FP32' shape: 1 shape: 1 shape: 1 shape: 2 ";
  for (const std::string& text : {head + "contents { fp32_contents: 1 fp32_contents: -2 } }",
                                  head + "} raw_input_contents: '\\x00\\x00\\x80\\x3f\\x00\\x00\\x00\\xc0'"}) {
    absl::StatusOr<Read> read = ReadRequest(text);
    ASSERT_TRUE(read.ok()) << read.status();
    absl::StatusOr<DecodedProblem> decoded = DecodeProblem(*read->problem.native, DataRule::kWhole);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_EQ(decoded->came.size(), 1u);
    EXPECT_EQ(decoded->inputs.q->data, nullptr) << "something was copied before it was admitted";
    const auto tensors = CopyTensors(*read->raw, decoded->came, decoded->inputs);
    const auto* values = reinterpret_cast<const float*>(decoded->inputs.q->data);
    EXPECT_EQ(values[0], 1);
    EXPECT_EQ(values[1], -2);
  }
}

TEST(InferenceTest, ListsAreReadFromEitherIntegerType) {
  for (const char* const contents :
       {"datatype: 'INT32' shape: 2 contents { int_contents: 3 int_contents: -1 } }",
        "datatype: 'INT64' shape: 2 contents { int64_contents: 3 int64_contents: -1 } }",
        "datatype: 'INT32' shape: 2 } raw_input_contents: '\\x03\\x00\\x00\\x00\\xff\\xff\\xff\\xff'"}) {
    const absl::StatusOr<Read> read = ReadRequest(std::string("inputs { name: 'q_offset' ") + contents);
    ASSERT_TRUE(read.ok()) << read.status();
    const auto& offsets = read->problem.native->options().q_offset();
    EXPECT_EQ(std::vector<std::int64_t>(offsets.begin(), offsets.end()), (std::vector<std::int64_t>{3, -1}));
  }
}

TEST(InferenceTest, ParametersBecomeOptions) {
  const absl::StatusOr<Read> read = ReadRequest(
      "parameters { key: 'scale' value { double_param: 0.5 } } parameters { key: 'causal' value { bool_param: true } }"
      "parameters { key: 'rotary_style' value { string_param: 'half' } }"
      "parameters { key: 'output_dtype' value { string_param: 'BF16' } }"
      "parameters { key: 'timeout' value { int64_param: 1500 } } parameters { key: 'headers' value {} }");
  ASSERT_TRUE(read.ok()) << read.status();
  v1::AttendRequest meant;
  meant.mutable_options()->set_scale(0.5);
  meant.mutable_options()->set_causal(true);
  meant.mutable_options()->mutable_rotary()->set_style(v1::ROTARY_STYLE_HALF);
  meant.mutable_options()->set_output_dtype(v1::DATA_TYPE_BFLOAT16);
  EXPECT_EQ(read->problem.native->SerializeAsString(), meant.SerializeAsString());
  EXPECT_EQ(read->problem.timeout, absl::Microseconds(1500));
  EXPECT_EQ(read->problem.replied, std::vector<OutputKind>{OutputKind::kOutput});
}

TEST(InferenceTest, PriorityByNumberIsThatOfStockClients) {
  const std::pair<std::uint64_t, v1::Priority> numbers[] = {{0, v1::PRIORITY_UNSPECIFIED},
                                                            {1, v1::PRIORITY_HIGH},
                                                            {2, v1::PRIORITY_NORMAL},
                                                            {3, v1::PRIORITY_LOW},
                                                            {99, v1::PRIORITY_LOW}};
  for (const auto& [number, priority] : numbers) {
    const absl::StatusOr<Read> read =
        ReadRequest("parameters { key: 'priority' value { uint64_param: " + std::to_string(number) + " } }");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->problem.native->priority(), priority) << number;
  }
}

// Every field of the native contract has a name of its own here, and each model knows those that it takes.
TEST(InferenceTest, FieldsHaveDifferentNames) {
  std::set<std::pair<std::string, bool>> names;
  for (const Field& field : Fields()) {
    EXPECT_TRUE(names.insert({field.name, field.is_input}).second) << field.path;
    EXPECT_TRUE(Takes(ModelKind::kAttention, field) || Takes(ModelKind::kProjectedAttention, field)) << field.path;
  }
  EXPECT_NE(FindField(ModelKind::kAttention, "page_table", true), nullptr);
  EXPECT_EQ(FindField(ModelKind::kAttention, "w_q", true), nullptr);
  EXPECT_EQ(FindField(ModelKind::kWeightSet, "w_q", true), nullptr);
  EXPECT_EQ(FindField(ModelKind::kProjectedAttention, "k", true), nullptr);
  EXPECT_EQ(FindField(ModelKind::kAttention, "scale", true), nullptr) << "it is a parameter";
}

TEST(InferenceTest, RefusalsAreSaidInTheProtocolsNames) {
  const std::pair<const char*, const char*> said[] = {
      {"k: shape [1], expected", "inputs[\"k\"]: shape [1], expected"},
      {"q.dtype: absent", "inputs[\"q\"].dtype: absent"},
      {"options.kv_len[3]: 9", "inputs[\"kv_len\"][3]: 9"},
      {"options.scale: nan", "parameters[\"scale\"]: nan"},
      {"options.rotary.style: absent", "parameters[\"rotary_style\"]: absent"},
      {"projection.w_q: shape", "inputs[\"w_q\"]: shape"},
      {"priority: high", "parameters[\"priority\"]: high"},
      {"kv: else", "kv: else"},
      {"bytes of memory: 5 needed", "bytes of memory: 5 needed"}};
  for (const auto& [native, here] : said) {
    absl::Status refusal = absl::InvalidArgumentError(native);
    refusal.SetPayload("url", absl::Cord("kept"));
    const absl::Status renamed = InInferenceWords(refusal);
    EXPECT_EQ(renamed.message(), here);
    EXPECT_EQ(renamed.code(), refusal.code());
    EXPECT_TRUE(renamed.GetPayload("url").has_value());
  }
}

TEST(InferenceTest, AnAnswerReadsBackAsItWasMeant) {
  ProblemInputs inputs;
  inputs.q = InputTensor{DType::kFloat32, {1, 2, 3000, 4}, nullptr};
  inputs.k = inputs.v = InputTensor{DType::kFloat32, {1, 2, 1, 4}, nullptr};
  inputs.outputs = {OutputKind::kLse};
  const absl::StatusOr<Problem> problem = Problem::Create(inputs, ProblemLimits{});
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto bytes = [](std::size_t count, char fill) {
    auto owner = std::make_shared<std::string>(count, fill);
    return OwnedBytes{owner, reinterpret_cast<const std::byte*>(owner->data()), static_cast<std::int64_t>(count)};
  };
  const grpc::ByteBuffer buffer =
      EncodeInferResponse({"attention", "1", "an id"}, *problem, {OutputKind::kLse, OutputKind::kOutput},
                          {{OutputKind::kOutput, bytes(96000, 'o')}, {OutputKind::kLse, bytes(24000, 'l')}});
  inference::ModelStreamInferResponse read;
  ASSERT_TRUE(ParseStock(EncodeStreamAnswer(buffer), read));
  inference::ModelInferResponse meant;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "model_name: 'attention' model_version: '1' id: 'an id'"
      "outputs { name: 'lse' datatype: 'FP32' shape: 1 shape: 2 shape: 3000 }"
      "outputs { name: 'output' datatype: 'FP32' shape: 1 shape: 2 shape: 3000 shape: 4 }",
      &meant));
  meant.add_raw_output_contents(std::string(24000, 'l'));
  meant.add_raw_output_contents(std::string(96000, 'o'));
  EXPECT_EQ(read.error_message(), "");
  EXPECT_EQ(read.infer_response().SerializeAsString(), meant.SerializeAsString());
}

TEST(InferenceTest, PartsAddUpToTheWhole) {
  ModelStatistics statistics;
  RequestRecord record;
  record.model = "attention";
  record.model_version = "1";
  record.read = absl::Nanoseconds(100);
  record.queued = absl::Nanoseconds(130);  // with `read`
  record.computed = absl::Nanoseconds(1000);
  record.total = absl::Nanoseconds(1200);
  statistics.Count(record);
  statistics.Count(record);
  record.status = absl::InvalidArgumentError("");
  statistics.Count(record);
  const inference::ModelStatistics model = statistics.Of("attention", "1");
  const auto is = [](const inference::StatisticDuration& part, std::uint64_t count, std::uint64_t ns) {
    return part.count() == count && part.ns() == ns;
  };
  EXPECT_EQ(model.inference_count(), 2u);
  EXPECT_TRUE(is(model.inference_stats().success(), 2, 2400));
  EXPECT_TRUE(is(model.inference_stats().fail(), 1, 1200));
  EXPECT_TRUE(is(model.inference_stats().queue(), 2, 60));
  EXPECT_TRUE(is(model.inference_stats().compute_input(), 2, 200));
  EXPECT_TRUE(is(model.inference_stats().compute_infer(), 2, 2000));
  EXPECT_TRUE(is(model.inference_stats().compute_output(), 2, 140));
  EXPECT_EQ(statistics.Of("attention", "2").inference_count(), 0u);
}

}  // namespace
}  // namespace attnd::server
