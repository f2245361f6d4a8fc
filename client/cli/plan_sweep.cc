#include "client/cli/plan_sweep.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/json.h"
#include "client/cli/text.h"

namespace attnd::client {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kTokensMin = 1024, kTokensMax = 1 << 20;

// One figure of a lesson: which field of the plan of which problem (one sequence, float32) it is.
struct Figure {
  std::int64_t tokens, heads, layers;
  const char* field;
  const char* says;
};

constexpr std::int64_t kFigureWidth = 128;
constexpr Figure kFigures[] = {
    {2048, 1, 1, "multiply_adds_per_head", "multiply-adds of both products, one head"},
    {2048, 96, 96, "multiply_adds", "multiply-adds over 96 heads and 96 layers"},
    {4096, 1, 1, "score_multiply_adds_per_head", "multiply-adds for the scores of one head"},
    {4096, 1, 1, "naive_score_bytes_per_head", "bytes of a float32 score matrix, one head"},
    {4096, 32, 32, "naive_score_bytes", "bytes of score matrices over 32 heads and 32 layers"},
    {128000, 1, 1, "scores_per_head", "scores of one head at 128 thousand tokens"},
    {131072, 1, 1, "scores_per_head", "scores of one head at 128 Ki tokens"},
};

v1::PlanRequest RequestOf(const Figure& figure) {
  v1::PlanRequest request;
  request.set_layers(figure.layers);
  v1::AttendRequest& problem = *request.mutable_problem();
  for (v1::Tensor* tensor : {problem.mutable_q(), problem.mutable_k(), problem.mutable_v()}) {
    tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const std::int64_t size : {std::int64_t{1}, figure.heads, figure.tokens, kFigureWidth})
      tensor->add_shape(size);
  }
  return request;
}

std::string Bytes(const Json& bytes) { return HumanBytes(bytes.get<double>()); }

}  // namespace

absl::StatusOr<Json> PlanLengths(Client& client, const PlanOfLength& plan_of) {
  Json json = {{"lengths", Json::array()}, {"figures", Json::array()}};
  for (std::int64_t tokens = kTokensMin; tokens <= kTokensMax; tokens *= 2) {
    const absl::StatusOr<v1::PlanRequest> request = plan_of(tokens);
    if (!request.ok()) return request.status();
    const absl::StatusOr<v1::PlanResponse> plan = client.Plan(*request);
    if (!plan.ok()) return plan.status();
    Json length = {{"tokens", tokens}};
    length.update(ToJson(*plan));
    json["lengths"].push_back(std::move(length));
  }
  for (const Figure& figure : kFigures) {
    const absl::StatusOr<v1::PlanResponse> plan = client.Plan(RequestOf(figure));
    if (!plan.ok()) return plan.status();
    json["figures"].push_back({{"tokens", figure.tokens},
                               {"heads", figure.heads},
                               {"layers", figure.layers},
                               {"d", kFigureWidth},
                               {"field", figure.field},
                               {"value", ToJson(*plan)[figure.field]},
                               {"says", figure.says}});
  }
  return json;
}

void PrintLengths(const Json& json, std::ostream& out) {
  Table table;
  table.Row({"tokens", "scores a head", "multiply-adds", "memory in tiles", "whole scores", "predicted here", ""});
  for (const Json& length : json["lengths"]) {
    table.Row({length["tokens"].dump(), HumanCount(length["scores_per_head"]), HumanCount(length["multiply_adds"]),
               Bytes(length["memory_bytes"]), Bytes(length["naive_score_bytes"]),
               HumanMicroseconds(length["predicted_compute_us"]),
               length["admitted"].get<bool>() ? "" : "would be refused"});
  }
  out << table.Text()
      << "\nTwice the tokens: four times the multiply-adds and whole scores, about twice the memory in tiles.\n"
      << "Memory in tiles is of one layer, whole scores (float32) of all sequences, heads and layers.\n\n"
      << "Figures of the lesson, of vectors of " << kFigureWidth << " numbers\n";
  Table figures({false, false, true});
  for (const Json& figure : json["figures"]) {
    const bool bytes = absl::StrContains(figure["field"].get<std::string>(), "bytes");
    figures.Row({absl::StrCat("at ", figure["tokens"].dump()),
                 bytes ? Bytes(figure["value"]) : HumanCount(figure["value"]), figure["says"]});
  }
  out << figures.Text(2);
}

}  // namespace attnd::client
