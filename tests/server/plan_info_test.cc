// The figures of the lesson that this project starts from, and what Info says of this machine.
#include "server/plan_info.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "server/wire/encode.h"
#include "tests/proto/messages.h"

namespace attnd::server {
namespace {

const Engine& TestEngine() {
  static const Engine* engine = [] {
    ServerConfig config;
    config.threads = 1;
    config.memory_bytes_max = std::int64_t{8} << 30;
    return new Engine(config);
  }();
  return *engine;
}

v1::PlanRequest Request(std::int64_t heads, std::int64_t n, std::int64_t d, std::int64_t layers = 0) {
  v1::PlanRequest request;
  request.set_layers(layers);
  for (v1::Tensor* tensor : {request.mutable_problem()->mutable_q(), request.mutable_problem()->mutable_k(),
                             request.mutable_problem()->mutable_v()}) {
    tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const std::int64_t size : {std::int64_t{1}, heads, n, d}) tensor->add_shape(size);
  }
  return request;
}

v1::PlanResponse Plan(const v1::PlanRequest& request) {
  const absl::StatusOr<v1::PlanResponse> plan = AnswerPlan(TestEngine(), request);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : v1::PlanResponse();
}

TEST(PlanTest, TheLessonsFigures) {
  // N = 4096, d = 128: 2.1e9 multiply-adds for the scores of one head; its score matrix is 64 MiB.
  EXPECT_EQ(Plan(Request(1, 4096, 128)).score_multiply_adds_per_head(), 2147483648);
  EXPECT_EQ(Plan(Request(1, 4096, 128)).naive_score_bytes_per_head(), 64LL << 20);
  // 64 GiB over 32 heads and 32 layers.
  EXPECT_EQ(Plan(Request(32, 4096, 128, 32)).naive_score_bytes(), 64LL << 30);
  // N = 128,000: 1.64e10 scores a head; 131,072: 1.72e10.
  EXPECT_EQ(Plan(Request(1, 128000, 128)).scores_per_head(), 16384000000);
  EXPECT_EQ(Plan(Request(1, 131072, 128)).scores_per_head(), 17179869184);
  // N = 2048, d = 128: 1.07e9 for both products of a head, 9.9e12 over 96 heads and 96 layers.
  EXPECT_EQ(Plan(Request(1, 2048, 128)).multiply_adds_per_head(), 1073741824);
  EXPECT_EQ(Plan(Request(96, 2048, 128, 96)).multiply_adds(), 9895604649984);
  // Twice the tokens are four times the work; 4K to 128K is 1024 times.
  EXPECT_EQ(Plan(Request(1, 8192, 64)).multiply_adds(), 4 * Plan(Request(1, 4096, 64)).multiply_adds());
  EXPECT_EQ(Plan(Request(1, 131072, 64)).multiply_adds(), 1024 * Plan(Request(1, 4096, 64)).multiply_adds());
}

TEST(PlanTest, MemoryIsNamedAndAddsUp) {
  const v1::PlanResponse plan = Plan(Request(8, 2048, 64));
  std::int64_t sum = 0;
  std::set<std::string> names;
  for (const v1::MemoryItem& item : plan.memory()) {
    sum += item.bytes();
    names.insert(item.name());
  }
  EXPECT_EQ(sum, plan.memory_bytes());
  EXPECT_TRUE(names.contains("inputs") && names.contains("packed_k") && names.contains("scratch") &&
              names.contains("outputs"));
  EXPECT_EQ(plan.request_bytes(), 3LL * 8 * 2048 * 64 * 4);
  EXPECT_EQ(plan.reply_bytes(), 1LL * 8 * 2048 * 64 * 4);
  EXPECT_TRUE(plan.admitted());
  EXPECT_TRUE(plan.refusal().empty());
  EXPECT_GT(plan.predicted_compute_us(), 0);
}

TEST(PlanTest, CausalSkipsWhatIsBeyondTheFrontier) {
  v1::PlanRequest request = Request(1, 1000, 64);
  request.mutable_problem()->mutable_options()->set_causal(true);
  const v1::PlanResponse plan = Plan(request);
  EXPECT_EQ(plan.flops(), 4LL * 1000 * 1000 * 64);
  EXPECT_EQ(plan.flops_after_exclusion(), 4LL * (1000 * 1001 / 2) * 64);
}

TEST(PlanTest, SaysWhyNot) {
  const v1::PlanResponse long_one = Plan(Request(1, 1 << 24, 1));
  EXPECT_FALSE(long_one.admitted());
  EXPECT_NE(long_one.refusal().find("tiles_max"), std::string::npos) << long_one.refusal();
  v1::PlanRequest request = Request(1, 131072, 64);
  request.mutable_problem()->add_outputs(v1::OUTPUT_KIND_WEIGHTS);
  const v1::PlanResponse weights = Plan(request);
  EXPECT_FALSE(weights.admitted());
  EXPECT_NE(weights.refusal().find("reply_bytes_max"), std::string::npos) << weights.refusal();
}

TEST(PlanTest, RefusesWhatMeansNothing) {
  v1::PlanRequest request = Request(1, 8, 4, -1);
  EXPECT_EQ(std::string(AnswerPlan(TestEngine(), request).status().message()), "layers: -1, expected at least 0");
  request = Request(1, 8, 4);
  request.mutable_problem()->mutable_q()->set_data("x");
  grpc::ByteBuffer buffer = EncodeMessage(request);
  absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *request.GetDescriptor(), kNoSkeletonLimit);
  ASSERT_TRUE(raw.ok() && raw->ParseSkeleton(request).ok());
  EXPECT_EQ(std::string(AnswerPlan(TestEngine(), request).status().message()),
            "q.data: 1 bytes, expected none: Plan takes shapes only");
  EXPECT_EQ(std::string(AnswerPlan(TestEngine(), {}).status().message()),
            "problem: absent, expected an AttendRequest without data");
  request = Request(1 << 20, 1 << 30, 1 << 10);
  EXPECT_FALSE(AnswerPlan(TestEngine(), request).ok());
  request = Request(1, 8, 4, std::int64_t{1} << 62);
  EXPECT_EQ(AnswerPlan(TestEngine(), request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(InfoTest, SaysWhatThisServerIs) {
  const v1::InfoResponse info = AnswerInfo(TestEngine(), {}).value();
  EXPECT_EQ(info.version(), ATTND_VERSION);
  EXPECT_EQ(info.threads(), 1);
  EXPECT_FALSE(info.instruction_set_used().empty());
  EXPECT_GT(info.memory_peak_resident_bytes(), 0);
  EXPECT_EQ(info.memory_bytes_used(), 0);
  // Every field of Options is listed once.
  std::multiset<std::string> listed(info.options().begin(), info.options().end());
  std::multiset<std::string> fields;
  for (int i = 0; i < v1::Options::descriptor()->field_count(); ++i)
    fields.insert(v1::Options::descriptor()->field(i)->name());
  EXPECT_EQ(listed, fields);
}

}  // namespace
}  // namespace attnd::server
