#include "server/readiness.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/attention.h"
#include "core/clock.h"
#include "core/row_sink.h"

namespace attnd::server {
namespace {

// One head of so many rows, keys and elements: just too much to run on the thread that asks instead of the pool.
constexpr std::int64_t kRows = 128, kWidth = 64;
// Before everyone: callers' weights are 1 to 16.
constexpr std::int64_t kWeight = 1 << 20;
constexpr double kTolerance = 1e-5;

InputTensor TensorOf(const std::vector<float>& values) {
  return {DType::kFloat32, {1, 1, kRows, kWidth}, reinterpret_cast<const std::byte*>(values.data())};
}

}  // namespace

// Every odd key gives row i the logit ln 3 * i / 127, every even one 0; odd values are c / 64 in column c, even ones 0.
// So with w = 3^(i / 127) row i is w / (1 + w) * c / 64.
struct Readiness::Probe {
  static constexpr std::size_t kElements = kRows * kWidth;
  std::vector<float> q = std::vector<float>(kElements), k = q, v = q, output = q;
  std::vector<double> right = std::vector<double>(kElements);
  std::shared_ptr<const Problem> problem;
  std::unique_ptr<DenseSink> sink;

  std::mutex mutex;
  std::condition_variable changed;
  bool running = false;      // a job has the buffers
  std::int64_t checked = 0;  // jobs that ended
  absl::Status outcome;      // of the last

  Probe() {
    for (std::size_t i = 0; i < kRows; ++i) {
      const double at = static_cast<double>(i) / (kRows - 1), weight = std::pow(3.0, at);
      for (std::size_t c = 0; c < kWidth; ++c) {
        const double value = static_cast<double>(c) / kWidth;
        q[i * kWidth + c] = static_cast<float>(at);
        k[i * kWidth + c] = i % 2 == 1 ? static_cast<float>(std::log(3.0) / kWidth) : 0.0F;
        v[i * kWidth + c] = i % 2 == 1 ? static_cast<float>(value) : 0.0F;
        right[i * kWidth + c] = weight / (1 + weight) * value;
      }
    }
    ProblemInputs inputs;
    inputs.q = TensorOf(q);
    inputs.k = TensorOf(k);
    inputs.v = TensorOf(v);
    inputs.options.scale = 1.0;
    absl::StatusOr<Problem> created = Problem::Create(inputs, ProblemLimits{});
    outcome = created.status();
    if (!created.ok()) return;
    problem = std::make_shared<const Problem>(*std::move(created));
    sink = std::make_unique<DenseSink>(
        *problem, [this](OutputKind, std::int64_t) { return reinterpret_cast<std::byte*>(output.data()); });
  }

  absl::Status Compare() const {
    for (std::size_t i = 0; i < kElements; ++i) {
      // Written so that NaN is wrong.
      if (std::abs(static_cast<double>(output[i]) - right[i]) <= kTolerance) continue;
      return absl::UnavailableError(absl::StrCat("a tiny attention came out wrong: row ", i / kWidth, ", column ",
                                                 i % kWidth, " is ", output[i], ", expected ", right[i]));
    }
    return absl::OkStatus();
  }

  void End(absl::Status status) {
    if (status.ok()) status = Compare();
    const std::lock_guard lock(mutex);
    running = false;
    ++checked;
    outcome = std::move(status);
    changed.notify_all();
  }
};

Readiness::Readiness(Engine& engine) : engine_(engine), probe_(std::make_shared<Probe>()) {}

absl::Status Readiness::Check() {
  if (engine_.lifecycle.draining()) return Draining();
  Probe& probe = *probe_;
  if (probe.problem == nullptr) return absl::UnavailableError(probe.outcome.message());
  const absl::Time end = Now() + kReadinessMax;
  std::unique_lock lock(probe.mutex);
  const std::int64_t before = probe.checked;
  std::shared_ptr<CancelToken> token;
  std::shared_ptr<Job> job;
  if (!probe.running) {
    probe.running = true;
    lock.unlock();
    std::fill(probe.output.begin(), probe.output.end(), std::numeric_limits<float>::quiet_NaN());
    token = std::make_shared<CancelToken>();
    try {
      job = StartAttention(
          probe.problem, *probe.sink, engine_.executor, token,
          [shared = probe_](const AttentionReport& report) { shared->End(report.status); },
          JobClass{"readiness", kWeight});
    } catch (const std::bad_alloc&) {
      probe.End(absl::UnavailableError("no memory for a tiny attention"));
    }
    lock.lock();
  }
  while (probe.checked == before && Now() < end) {
    probe.changed.wait_for(lock, std::chrono::milliseconds(100));
  }
  const bool answered = probe.checked != before;
  absl::Status outcome = probe.outcome;
  lock.unlock();
  if (!answered) {
    outcome = absl::UnavailableError(absl::StrCat("the compute pool did not finish a tiny attention within ",
                                                  absl::ToInt64Milliseconds(kReadinessMax), " ms"));
    if (job != nullptr) {
      token->Cancel(outcome);
      engine_.executor.Wake(job);
    }
  }
  if (token != nullptr) engine_.metrics.ReadinessCheck(outcome.ok());
  return outcome;
}

}  // namespace attnd::server
