#include "server/admission.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/cost.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

ServerConfig TestConfig() {
  ServerConfig config;
  config.threads = 2;
  config.memory_bytes_max = 1024 * kMiB;
  config.message_bytes_max = 64 * kMiB;
  return config;
}

// An admission with the budget of its configuration.
struct Limited {
  Limited(const ServerConfig& config, ComputeRates rates)
      : budget(LimitsOf(config)), admission(config, budget, rates) {}
  Budget budget;
  Admission admission;
};

Demand DemandOf(const Admission& admission, std::int64_t n, std::int64_t d, std::vector<OutputKind> outputs,
                Delivery delivery) {
  ProblemInputs inputs;
  const InputTensor tensor{DType::kFloat32, {1, 1, n, d}, nullptr};
  inputs.q = inputs.k = inputs.v = tensor;
  inputs.outputs = std::move(outputs);
  const absl::StatusOr<Problem> problem = Problem::Create(inputs, ProblemLimits{});
  EXPECT_TRUE(problem.ok()) << problem.status();
  const absl::StatusOr<Cost> cost = EstimateCost(*problem);
  EXPECT_TRUE(cost.ok()) << cost.status();
  return admission.DemandOf(*problem, *cost, delivery);
}

// What can never run is refused with its own words, and without an invitation to retry.
void ExpectNever(const absl::Status& status, absl::string_view flag) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find(flag), absl::string_view::npos) << status;
  EXPECT_EQ(status.message().find("retry"), absl::string_view::npos) << status;
}

TEST(AdmissionTest, SixteenMillionSquaredAtWidthOne) {
  const Limited limited(TestConfig(), {1e11, 1e9});
  const Admission& admission = limited.admission;
  ExpectNever(admission.CheckEver(DemandOf(admission, 1 << 24, 1, {}, Delivery::kStream)), "(tiles_max)");
}

TEST(AdmissionTest, WeightsOfALongContext) {
  const Limited limited(TestConfig(), {1e11, 1e9});
  const Admission& admission = limited.admission;
  const Demand demand = DemandOf(admission, 131072, 64, {OutputKind::kWeights}, Delivery::kStream);
  ExpectNever(admission.CheckEver(demand), "(reply_bytes_max)");
  EXPECT_EQ(demand.reply_bytes, 131072LL * 131072 * 4 + 131072LL * 64 * 4);
  // On a stream only what is under way is held, however large the answer.
  EXPECT_LT(demand.outputs_bytes, 16 * kMiB);
}

TEST(AdmissionTest, AnAnswerTooLargeForOneMessageIsSentToTheStream) {
  const Limited limited(TestConfig(), {1e11, 1e9});
  const Admission& admission = limited.admission;
  const absl::Status unary =
      admission.CheckEver(DemandOf(admission, 8192, 64, {OutputKind::kWeights}, Delivery::kUnary));
  ExpectNever(unary, "(message_bytes_max)");
  EXPECT_NE(unary.message().find("AttendStream"), absl::string_view::npos);
  EXPECT_TRUE(admission.CheckEver(DemandOf(admission, 8192, 64, {OutputKind::kWeights}, Delivery::kStream)).ok());
}

TEST(AdmissionTest, ComputeIsPredictedFromTheMeasuredRate) {
  ServerConfig config = TestConfig();
  config.compute_ms_max = 1000;
  const Limited fast_machine(config, {1e12, 1e9}), slow_machine(config, {1e9, 1e9});
  const Admission &fast = fast_machine.admission, &slow = slow_machine.admission;
  // 4 * 4096^2 * 64 = 4.29e9 FLOPs
  EXPECT_TRUE(fast.CheckEver(DemandOf(fast, 4096, 64, {}, Delivery::kStream)).ok());
  const absl::Status refused = slow.CheckEver(DemandOf(slow, 4096, 64, {}, Delivery::kStream));
  ExpectNever(refused, "(compute_ms_max)");
  EXPECT_NE(refused.message().find("4294 needed, 1000 allowed"), absl::string_view::npos) << refused;
}

TEST(AdmissionTest, MemoryThatCanNeverBe) {
  ServerConfig config = TestConfig();
  config.memory_bytes_max = 128 * kMiB;  // half of it is gRPC's
  const Limited limited(config, {1e12, 1e9});
  const Admission& admission = limited.admission;
  EXPECT_EQ(limited.budget.bytes_allowed(), 63 * kMiB);  // a MiB is set aside for readiness
  config.pool_bytes_max = 16 * kMiB;
  EXPECT_EQ(LimitsOf(config).bytes, 47 * kMiB);
  ExpectNever(admission.CheckEver(DemandOf(admission, 131072, 64, {}, Delivery::kStream)), "memory_bytes_max");
}

TEST(AdmissionTest, NamedMemoryAddsUp) {
  const Limited limited(TestConfig(), {1e12, 1e9});
  const Admission& admission = limited.admission;
  const Demand demand = DemandOf(admission, 1000, 64, {OutputKind::kWeights}, Delivery::kUnary);
  std::int64_t sum = 0;
  for (const NamedBytes& item : demand.memory) sum += item.bytes;
  EXPECT_EQ(sum, demand.memory_bytes);
  EXPECT_EQ(demand.outputs_bytes, 1000 * 64 * 4 + 1000 * 1000 * 4);
}

TEST(AdmissionTest, ADeadlineBeyondHopeIsRefusedWithThePrediction) {
  const Limited limited(TestConfig(), {1e9, 1e9});
  const Admission& admission = limited.admission;
  const Demand demand = DemandOf(admission, 1000, 25, {}, Delivery::kUnary);  // 4 * 1000 * 1000 * 25 FLOPs: 100 ms
  EXPECT_EQ(admission.CheckDeadline(demand, absl::InfiniteDuration()), absl::OkStatus());
  EXPECT_EQ(admission.CheckDeadline(demand, absl::Milliseconds(26)), absl::OkStatus());
  const absl::Status refused = admission.CheckDeadline(demand, absl::Milliseconds(24));
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(refused.message()),
            "the deadline leaves 24 ms, predicted are 100 ms of compute with nothing else running");
  // What can never run says so first.
  ExpectNever(admission.CheckDeadline(DemandOf(admission, 1 << 24, 1, {}, Delivery::kStream), absl::ZeroDuration()),
              "(tiles_max)");
}

}  // namespace
}  // namespace attnd::server
