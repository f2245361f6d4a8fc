#include "server/inference/models.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/weight_sets.h"

namespace attnd::server {
namespace {

constexpr char kAttention[] = "attention", kProjectedAttention[] = "projected_attention";
constexpr std::size_t kNameBytesMax = 64;  // of what came, in an error

std::string Quoted(absl::string_view name) {
  return absl::StrCat("\"", absl::CEscape(name.substr(0, kNameBytesMax)), "\"");
}

google::protobuf::RepeatedField<std::int64_t> AnyShape(int rank) {
  google::protobuf::RepeatedField<std::int64_t> shape;
  shape.Resize(rank, -1);
  return shape;
}

struct ListedOutput {
  OutputKind kind;
  int rank;
};

// Load testers ask for every output that is listed: those of a size like the output's are. With w_o the output is
// [B, N, d_out], and a weight set may have one.
std::vector<ListedOutput> ListedOutputs(ModelKind model) {
  return {{OutputKind::kOutput, model == ModelKind::kWeightSet ? 3 : 4}, {OutputKind::kLse, 3}};
}

}  // namespace

std::vector<Model> ListModels(const Engine& engine, const std::string& name) {
  std::vector<Model> models;
  if (name.empty() || name == kAttention) models.push_back({ModelKind::kAttention, kAttention, "1"});
  if (name.empty() || name == kProjectedAttention) {
    models.push_back({ModelKind::kProjectedAttention, kProjectedAttention, "1"});
  }
  for (const WeightSets::Listed& listed : engine.weight_sets.List(name)) {
    const WeightSetHead& head = listed.set->head;
    if (head.name == kAttention || head.name == kProjectedAttention) continue;
    models.push_back({ModelKind::kWeightSet, head.name, absl::StrCat(head.version)});
  }
  return models;
}

absl::StatusOr<Model> FindModel(const Engine& engine, const std::string& name, const std::string& version) {
  std::vector<Model> models = name.empty() ? std::vector<Model>() : ListModels(engine, name);
  if (version.empty() && !models.empty()) return models.back();
  for (Model& model : models) {
    if (model.version == version) return std::move(model);
  }
  if (!models.empty()) {
    return absl::NotFoundError(absl::StrCat("model_version: ", Quoted(version), ", not among those of ", Quoted(name)));
  }
  return absl::NotFoundError(
      absl::StrCat("model_name: ", Quoted(name), ", expected attention, projected_attention or a weight set's name"));
}

absl::StatusOr<inference::ServerLiveResponse> AnswerServerLive(const Engine&, const inference::ServerLiveRequest&) {
  inference::ServerLiveResponse response;
  response.set_live(true);
  return response;
}

absl::StatusOr<inference::ServerReadyResponse> AnswerServerReady(const Engine& engine,
                                                                 const inference::ServerReadyRequest&) {
  inference::ServerReadyResponse response;
  response.set_ready(!engine.lifecycle.draining());
  return response;
}

absl::StatusOr<inference::ModelReadyResponse> AnswerModelReady(const Engine& engine,
                                                               const inference::ModelReadyRequest& request) {
  const absl::StatusOr<Model> model = FindModel(engine, request.name(), request.version());
  inference::ModelReadyResponse response;
  response.set_ready(model.ok() && !engine.lifecycle.draining());
  return response;
}

absl::StatusOr<inference::ServerMetadataResponse> AnswerServerMetadata(const Engine&,
                                                                       const inference::ServerMetadataRequest&) {
  inference::ServerMetadataResponse response;
  response.set_name("attnd");
  response.set_version(ATTND_VERSION);
  for (const char* extension : {"binary_tensor_data", "parameters", "model_configuration", "statistics"}) {
    response.add_extensions(extension);
  }
  return response;
}

absl::StatusOr<inference::ModelMetadataResponse> AnswerModelMetadata(const Engine& engine,
                                                                     const inference::ModelMetadataRequest& request) {
  const absl::StatusOr<Model> model = FindModel(engine, request.name(), request.version());
  if (!model.ok()) return model.status();
  inference::ModelMetadataResponse response;
  response.set_name(model->name);
  response.set_platform("attnd");
  for (const Model& version : ListModels(engine, model->name)) response.add_versions(version.version);
  for (const Field& field : Fields()) {
    if (!field.is_input || !Takes(model->kind, field)) continue;
    auto& input = *response.add_inputs();
    input.set_name(field.name);
    input.set_datatype(std::string(DataTypeName(field.dtype)));
    *input.mutable_shape() = AnyShape(field.rank);
  }
  for (const ListedOutput& listed : ListedOutputs(model->kind)) {
    auto& output = *response.add_outputs();
    output.set_name(OutputName(listed.kind));
    output.set_datatype(std::string(DataTypeName(DType::kFloat32)));
    *output.mutable_shape() = AnyShape(listed.rank);
  }
  return response;
}

absl::StatusOr<inference::ModelConfigResponse> AnswerModelConfig(const Engine& engine,
                                                                 const inference::ModelConfigRequest& request) {
  const absl::StatusOr<Model> model = FindModel(engine, request.name(), request.version());
  if (!model.ok()) return model.status();
  inference::ModelConfigResponse response;
  inference::ModelConfig& config = *response.mutable_config();
  config.set_name(model->name);
  config.set_platform("attnd");
  config.set_backend("attnd");
  config.mutable_model_transaction_policy();  // not decoupled: one reply to a request
  for (const Field& field : Fields()) {
    if (!field.is_input || !Takes(model->kind, field)) continue;
    inference::ModelInput& input = *config.add_input();
    input.set_name(field.name);
    input.set_data_type(ConfigDataType(field.dtype));
    *input.mutable_dims() = AnyShape(field.rank);
    input.set_optional(!IsRequired(model->kind, field));
  }
  for (const ListedOutput& listed : ListedOutputs(model->kind)) {
    inference::ModelOutput& output = *config.add_output();
    output.set_name(OutputName(listed.kind));
    output.set_data_type(ConfigDataType(DType::kFloat32));
    *output.mutable_dims() = AnyShape(listed.rank);
  }
  return response;
}

absl::StatusOr<inference::ModelStatisticsResponse> AnswerModelStatistics(
    const Engine& engine, const inference::ModelStatisticsRequest& request) {
  inference::ModelStatisticsResponse response;
  for (const Model& model : ListModels(engine, request.name())) {
    if (!request.version().empty() && request.version() != model.version) continue;
    *response.add_model_stats() = engine.model_statistics.Of(model.name, model.version);
  }
  if (!request.name().empty() && response.model_stats().empty()) {
    return FindModel(engine, request.name(), request.version()).status();
  }
  return response;
}

absl::StatusOr<inference::RepositoryIndexResponse> AnswerRepositoryIndex(
    const Engine& engine, const inference::RepositoryIndexRequest& request) {
  if (!request.repository_name().empty()) {
    return absl::NotFoundError(absl::StrCat("repository_name: ", Quoted(request.repository_name()),
                                            ", expected none: there is one repository"));
  }
  inference::RepositoryIndexResponse response;
  const bool ready = !engine.lifecycle.draining();
  if (request.ready() && !ready) return response;
  for (const Model& model : ListModels(engine, "")) {
    inference::RepositoryIndexResponse::ModelIndex& index = *response.add_models();
    index.set_name(model.name);
    index.set_version(model.version);
    index.set_state(ready ? "READY" : "UNAVAILABLE");
    if (!ready) index.set_reason("draining");
  }
  return response;
}

}  // namespace attnd::server
