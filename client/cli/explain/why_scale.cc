#include "client/cli/explain/why_scale.h"

#include <cmath>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/ask.h"
#include "client/cli/explain/numbers.h"
#include "client/cli/random.h"
#include "client/cli/text.h"

namespace attnd::client {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kRows = 128, kKeys = 128;
constexpr std::int64_t kWidthMin = 4, kWidthMax = 1024;

double StandardDeviation(const Array& values) {
  double sum = 0, squares = 0;
  const auto count = static_cast<double>(values.elements());
  for (std::int64_t i = 0; i < values.elements(); ++i) sum += values.At(i);
  for (std::int64_t i = 0; i < values.elements(); ++i) squares += std::pow(values.At(i) - sum / count, 2);
  return std::sqrt(squares / count);
}

// Of a row, in bits; the mean over rows.
double MeanEntropy(const Array& weights) {
  double bits = 0;
  for (std::int64_t i = 0; i < weights.elements(); ++i) {
    const double w = weights.At(i);
    if (w > 0) bits -= w * std::log2(w);
  }
  return bits / kRows;
}

// Spread of the scores and entropy of the weights.
absl::StatusOr<Json> Measure(Client& client, const Problem& problem) {
  const absl::StatusOr<Answer> answer = Ask(client, problem);
  if (!answer.ok()) return answer.status();
  const Array* scores = answer->Find(v1::OUTPUT_KIND_SCORES_SCALED);
  const Array* weights = answer->Find(v1::OUTPUT_KIND_WEIGHTS);
  if (scores == nullptr || weights == nullptr) return absl::InternalError("the server left out scores or weights");
  const double entropy = MeanEntropy(*weights);
  return Json{{"spread", JsonRounded(StandardDeviation(*scores))},
              {"entropy_bits", JsonRounded(entropy)},
              {"effective_keys", JsonRounded(std::exp2(entropy))}};
}

}  // namespace

absl::StatusOr<Json> MeasureWhyScale(Client& client) {
  Json json = {{"rows", kRows}, {"keys", kKeys}, {"entropy_bits_max", std::log2(kKeys)}, {"widths", Json::array()}};
  std::mt19937_64 generator(1);
  for (std::int64_t d = kWidthMin; d <= kWidthMax; d *= 2) {
    const absl::StatusOr<Array> q = RandomArray(generator, DType::kFloat32, {kRows, d});
    const absl::StatusOr<Array> k = RandomArray(generator, DType::kFloat32, {kKeys, d});
    const absl::StatusOr<Array> v = Array::Zeros(DType::kFloat32, {kKeys, 1});
    for (const absl::StatusOr<Array>* array : {&q, &k, &v}) {
      if (!array->ok()) return array->status();
    }
    absl::StatusOr<Problem> problem = Problem::FromQkv(*q, *k, *v);
    if (!problem.ok()) return problem.status();
    problem->Want(v1::OUTPUT_KIND_SCORES_SCALED);
    problem->Want(v1::OUTPUT_KIND_WEIGHTS);
    const absl::StatusOr<Json> scaled = Measure(client, *problem);
    if (!scaled.ok()) return scaled.status();
    problem->options().set_scale(1);
    const absl::StatusOr<Json> unscaled = Measure(client, *problem);
    if (!unscaled.ok()) return unscaled.status();
    json["widths"].push_back({{"d", d},
                              {"root_d", JsonRounded(std::sqrt(static_cast<double>(d)))},
                              {"unscaled", *unscaled},
                              {"scaled", *scaled}});
  }
  return json;
}

void PrintWhyScale(const Json& json, std::ostream& out) {
  out << "Why √d: random vectors of d numbers of variance 1, " << json["rows"] << " queries and " << json["keys"]
      << " keys\n";
  Table table;
  table.Row({"", "", "as q · k comes", "", "", "divided by √d", "", ""});
  table.Row({"d", "√d", "spread", "entropy", "effective keys", "spread", "entropy", "effective keys"});
  for (const Json& width : json["widths"]) {
    std::vector<std::string> cells = {width["d"].dump(), Fixed(width["root_d"], 2)};
    for (const char* way : {"unscaled", "scaled"}) {
      cells.push_back(Fixed(width[way]["spread"], 2));
      cells.push_back(Fixed(width[way]["entropy_bits"], 2));
      cells.push_back(Fixed(width[way]["effective_keys"], 1));
    }
    table.Row(cells);
  }
  out << table.Text(2)
      << "Scores spread (standard deviation) by √d, so without the scale long vectors leave one key with all the\n"
         "weight; divided by √d they spread by 1 at every width. Entropy in bits, at most "
      << Fixed(json["entropy_bits_max"], 0) << ".\n";
}

}  // namespace attnd::client
