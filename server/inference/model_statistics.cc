#include "server/inference/model_statistics.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace attnd::server {
namespace {

constexpr std::size_t kModelsMax = 4096;  // versions of weight sets come and go

std::uint64_t Ns(absl::Duration duration) { return static_cast<std::uint64_t>(absl::ToInt64Nanoseconds(duration)); }

void Add(std::uint64_t ns, inference::StatisticDuration& to) {
  to.set_count(to.count() + 1);
  to.set_ns(to.ns() + ns);
}

}  // namespace

void ModelStatistics::Count(const RequestRecord& record) {
  const std::lock_guard lock(mutex_);
  const std::pair<std::string, std::string> key(record.model, record.model_version);
  if (models_.size() >= kModelsMax && models_.count(key) == 0) {
    models_.erase(std::min_element(models_.begin(), models_.end(), [](const auto& one, const auto& other) {
      return one.second.last_inference() < other.second.last_inference();
    }));
  }
  inference::ModelStatistics& model = models_[key];
  inference::InferStatistics& all = *model.mutable_inference_stats();
  model.set_last_inference(static_cast<std::uint64_t>(absl::ToUnixMillis(absl::Now())));
  const std::uint64_t total = Ns(record.total);
  if (!record.status.ok()) return Add(total, *all.mutable_fail());
  model.set_inference_count(model.inference_count() + 1);
  model.set_execution_count(model.execution_count() + 1);
  const std::uint64_t queue = Ns(record.queued - record.read), input = Ns(record.read), infer = Ns(record.computed);
  const std::uint64_t output = total - queue - input - infer;
  Add(total, *all.mutable_success());
  Add(queue, *all.mutable_queue());
  if (model.batch_stats().empty()) model.add_batch_stats()->set_batch_size(1);
  inference::InferBatchStatistics& batch = *model.mutable_batch_stats(0);
  for (auto* input_of : {all.mutable_compute_input(), batch.mutable_compute_input()}) Add(input, *input_of);
  for (auto* infer_of : {all.mutable_compute_infer(), batch.mutable_compute_infer()}) Add(infer, *infer_of);
  for (auto* output_of : {all.mutable_compute_output(), batch.mutable_compute_output()}) Add(output, *output_of);
}

inference::ModelStatistics ModelStatistics::Of(const std::string& name, const std::string& version) const {
  const std::lock_guard lock(mutex_);
  const auto found = models_.find({name, version});
  inference::ModelStatistics model;
  if (found != models_.end()) model = found->second;
  model.set_name(name);
  model.set_version(version);
  model.mutable_inference_stats();
  return model;
}

}  // namespace attnd::server
