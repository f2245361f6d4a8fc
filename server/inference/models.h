// The models of the Open Inference Protocol: `attention`, `projected_attention`, and one for each version of each
// weight set; and what the protocol's small calls say of them. Thread rule: from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/inference.pb.h"
#include "server/engine.h"
#include "server/inference/fields.h"

namespace attnd::server {

struct Model {
  ModelKind kind = ModelKind::kAttention;
  std::string name;
  std::string version;  // "1" but for weight sets
};

// All of them, or those of one name; the newest version of a name comes last.
std::vector<Model> ListModels(const Engine& engine, const std::string& name);

// The newest version where none is asked for. NOT_FOUND.
absl::StatusOr<Model> FindModel(const Engine& engine, const std::string& name, const std::string& version);

absl::StatusOr<inference::ServerLiveResponse> AnswerServerLive(const Engine&, const inference::ServerLiveRequest&);
absl::StatusOr<inference::ServerReadyResponse> AnswerServerReady(const Engine& engine,
                                                                 const inference::ServerReadyRequest&);
absl::StatusOr<inference::ModelReadyResponse> AnswerModelReady(const Engine& engine,
                                                               const inference::ModelReadyRequest& request);
absl::StatusOr<inference::ServerMetadataResponse> AnswerServerMetadata(const Engine&,
                                                                       const inference::ServerMetadataRequest&);
absl::StatusOr<inference::ModelMetadataResponse> AnswerModelMetadata(const Engine& engine,
                                                                     const inference::ModelMetadataRequest& request);
absl::StatusOr<inference::ModelConfigResponse> AnswerModelConfig(const Engine& engine,
                                                                 const inference::ModelConfigRequest& request);
absl::StatusOr<inference::ModelStatisticsResponse> AnswerModelStatistics(
    const Engine& engine, const inference::ModelStatisticsRequest& request);
absl::StatusOr<inference::RepositoryIndexResponse> AnswerRepositoryIndex(
    const Engine& engine, const inference::RepositoryIndexRequest& request);

}  // namespace attnd::server
