// What the Open Inference Protocol's ModelStatistics says: how often each model was asked through this protocol, and
// how long each part of it took. Thread rule: every function from any thread.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "inference/inference.pb.h"
#include "server/request_record.h"

namespace attnd::server {

class ModelStatistics {
 public:
  // As a request of a model is about to be answered; its total counts until then. The four parts of one that succeeded
  // add up to it: `queue`, while it waited for compute; `compute_input`, from its last byte until its tensors were
  // copied; `compute_infer`; and `compute_output`, from then until its answer was made.
  void Count(const RequestRecord& record);

  // Zeros for a model that nobody has asked.
  inference::ModelStatistics Of(const std::string& name, const std::string& version) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, inference::ModelStatistics> models_;  // by name and version
};

}  // namespace attnd::server
