#include "client/cli/bench/workload.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/bench/kserve.h"
#include "client/cli/random.h"
#include "client/file.h"

namespace attnd::client {

namespace {

// Tensors are held for each length.
constexpr std::size_t kLengths = 32;
constexpr std::size_t kMixMax = 1000;
constexpr double kPrefillShare = 0.05;  // of the requests of a decode-like mix

std::string ShapeTextOf(const ShapeFlag& s) {
  const auto pair = [](std::int64_t a, std::int64_t b) { return a == b ? absl::StrCat(a) : absl::StrCat(a, "/", b); };
  const std::string rows = s.nq == s.nk ? absl::StrCat(s.nq) : absl::StrCat(s.nq, ",", s.nk);
  return absl::StrCat(s.batch, ",", pair(s.q_heads, s.kv_heads), ",", rows, ",", pair(s.d_k, s.d_v));
}

// What an item is before it has tensors.
struct Sketch {
  double weight = 1;
  ShapeFlag shape;
  std::string shape_text, dtype;
  nlohmann::json options;  // of the contract, beside the flags'
};

absl::Status ApplyJson(const nlohmann::json& json, v1::Options* options) {
  if (json.is_null()) return absl::OkStatus();
  v1::Options more;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json.dump(), &more);
  if (!parsed.ok())
    return UsageError(absl::StrCat("--mix: options ", json.dump(), ": ", std::string(parsed.message())));
  options->MergeFrom(more);
  return absl::OkStatus();
}

absl::StatusOr<WorkItem> MakeItem(const Sketch& sketch, const OptionFlags& flags, std::optional<DType> convert,
                                  const std::optional<std::string>& kserve_model, std::mt19937_64& generator) {
  const ShapeFlag& shape = sketch.shape;
  const absl::StatusOr<DType> dtype = DTypeByName(sketch.dtype);
  if (!dtype.ok()) return UsageError(absl::StrCat("--dtype: ", dtype.status().message()));
  const absl::StatusOr<v1::Layout> layout = flags.Layout();
  if (!layout.ok()) return layout.status();
  const absl::StatusOr<v1::Priority> priority = flags.Priority();
  if (!priority.ok()) return priority.status();
  const bool bnhd = *layout == v1::LAYOUT_BNHD;
  const auto random = [&](std::int64_t heads, std::int64_t rows, std::int64_t columns) {
    return RandomArray(generator, *dtype, {shape.batch, bnhd ? rows : heads, bnhd ? heads : rows, columns});
  };
  absl::StatusOr<Array> q = random(shape.q_heads, shape.nq, shape.d_k);
  if (!q.ok()) return UsageError(absl::StrCat("--shape: ", q.status().message()));
  absl::StatusOr<Array> k = random(shape.kv_heads, shape.nk, shape.d_k);
  if (!k.ok()) return UsageError(absl::StrCat("--shape: ", k.status().message()));
  absl::StatusOr<Array> v = random(shape.kv_heads, shape.nk, shape.d_v);
  if (!v.ok()) return UsageError(absl::StrCat("--shape: ", v.status().message()));
  absl::StatusOr<Problem> problem = Problem::FromQkv(*std::move(q), *std::move(k), *std::move(v), *layout);
  if (!problem.ok()) return problem.status();
  absl::Status applied = flags.Apply(shape.batch, shape.d_k, &problem->options());
  applied.Update(ApplyJson(sketch.options, &problem->options()));
  if (!applied.ok()) return applied;
  problem->SetPriority(*priority);

  WorkItem item;
  item.weight = sketch.weight;
  item.shape = sketch.shape_text;
  item.dtype = sketch.dtype;
  item.tokens = static_cast<double>(shape.batch * shape.nq);
  Problem sent = *problem;
  if (convert) {
    const absl::Status converted = sent.SetWireDType(*convert);
    if (!converted.ok()) return converted;
  }
  item.tensor_bytes = static_cast<double>(sent.request_bytes() + sent.reply_bytes().value_or(0));
  const absl::StatusOr<OutputLayout> output = sent.LayoutOf(v1::OUTPUT_KIND_OUTPUT);
  item.output_bytes = output.ok() ? output->elements * ElementBytes(sent.output_dtype()) : 0;
  item.problem = *std::move(problem);
  if (kserve_model) {
    absl::StatusOr<grpc::ByteBuffer> message = EncodeModelInfer(item.problem, *kserve_model);
    if (!message.ok()) return UsageError(absl::StrCat("--protocol kserve: ", message.status().message()));
    item.message = *std::move(message);
    item.kserve = true;
    return item;
  }
  item.message = EncodeAttend(item.problem.shared_request());
  item.parts = StreamParts(item.problem, ClientOptions().piece_bytes);
  return item;
}

absl::StatusOr<std::vector<Sketch>> ReadMix(const std::string& path, const Sketch& base) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  const nlohmann::json file = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto bad = [&](absl::string_view words) { return UsageError(absl::StrCat("--mix ", path, ": ", words)); };
  if (!file.is_array() || file.empty() || file.size() > kMixMax) {
    return bad(absl::StrCat("expected a JSON array of 1 to ", kMixMax, " objects with weight, shape, dtype, options"));
  }
  std::vector<Sketch> sketches;
  for (const nlohmann::json& entry : file) {
    Sketch sketch = base;
    if (!entry.is_object()) return bad(absl::StrCat("found ", entry.dump(), ", expected an object"));
    for (const auto& [key, value] : entry.items()) {
      if (key == "weight" && value.is_number() && value.get<double>() > 0) {
        sketch.weight = value.get<double>();
      } else if (key == "shape" && value.is_string()) {
        sketch.shape_text = value.get<std::string>();
      } else if (key == "dtype" && value.is_string()) {
        sketch.dtype = value.get<std::string>();
      } else if (key == "options" && value.is_object()) {
        sketch.options = value;
      } else {
        return bad(absl::StrCat("found \"", key, "\": ", value.dump(),
                                ", expected weight (above 0), shape, dtype (texts) or options (an object)"));
      }
    }
    const absl::StatusOr<ShapeFlag> shape = ShapeFlag::Parse(absl::StrCat("--mix ", path), sketch.shape_text);
    if (!shape.ok()) return shape.status();
    sketch.shape = *shape;
    sketches.push_back(std::move(sketch));
  }
  return sketches;
}

// Steps of one query over caches of all lengths up to the shape's, and a few prompts of its length.
std::vector<Sketch> DecodeMix(const Sketch& base) {
  std::vector<Sketch> sketches;
  for (int share = 1; share <= 8; ++share) {
    Sketch step = base;
    step.shape.nq = 1;
    step.shape.nk = std::max<std::int64_t>(1, base.shape.nk * share / 8);
    step.weight = (1 - kPrefillShare) / 8;
    sketches.push_back(step);
  }
  Sketch prefill = base;
  prefill.weight = kPrefillShare;
  prefill.options = {{"causal", true}};
  sketches.push_back(prefill);
  return sketches;
}

// The inverse of the standard normal distribution, by bisection: it runs a few dozen times.
double NormalQuantile(double share) {
  double low = -10, high = 10;
  for (int step = 0; step < 80; ++step) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < share ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

absl::StatusOr<std::vector<std::int64_t>> LengthsOf(absl::string_view text, std::int64_t most, std::size_t count) {
  const absl::Status bad = UsageError(
      absl::StrCat("--lengths: '", text, "', expected zipf:EXPONENT or lognormal:MEDIAN:SIGMA with numbers above 0"));
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  std::vector<double> numbers;
  for (std::size_t p = 1; p < parts.size(); ++p) {
    numbers.push_back(0);
    if (!absl::SimpleAtod(parts[p], &numbers.back()) || !(numbers.back() > 0) || !std::isfinite(numbers.back())) {
      return bad;
    }
  }
  most = std::max<std::int64_t>(most, 1);
  std::vector<std::int64_t> lengths;
  const auto middle = [&](std::size_t share) {
    return (static_cast<double>(share) + 0.5) / static_cast<double>(count);
  };
  if (parts[0] == "zipf" && numbers.size() == 1) {
    double total = 0;
    for (std::int64_t n = 1; n <= most; ++n) total += std::pow(static_cast<double>(n), -numbers[0]);
    double sum = 0;
    for (std::int64_t n = 1; n <= most; ++n) {
      sum += std::pow(static_cast<double>(n), -numbers[0]);
      while (lengths.size() < count && (sum >= middle(lengths.size()) * total || n == most)) lengths.push_back(n);
    }
  } else if (parts[0] == "lognormal" && numbers.size() == 2) {
    for (std::size_t share = 0; share < count; ++share) {
      const double length = numbers[0] * std::exp(numbers[1] * NormalQuantile(middle(share)));
      lengths.push_back(static_cast<std::int64_t>(std::clamp(std::round(length), 1.0, static_cast<double>(most))));
    }
  } else {
    return bad;
  }
  return lengths;
}

void WorkloadFlags::AddTo(CLI::App& app) {
  const std::string group = "What is asked";
  app.add_option("--shape", shape, "B,H,N,d or B,H,Nq,Nk,d; H may be Hq/Hkv, d may be d_k/d_v")
      ->capture_default_str()
      ->group(group);
  app.add_option("--dtype", dtype, "of q, k and v")->capture_default_str()->type_name(kFloatTypes)->group(group);
  app.add_option("--wire_dtype", wire_dtype, "send tensors and get the output as this; every call converts both ways")
      ->type_name(kFloatTypes)
      ->group(group);
  app.add_option("--mix", mix,
                 "JSON file: an array of {weight, shape, dtype, options as in the contract}; or `decode`: steps of one "
                 "query over caches of up to --shape's keys, and 5 % prompts")
      ->group(group);
  app.add_option("--protocol", protocol, "native, or kserve: version 2 of the Open Inference Protocol")
      ->capture_default_str()
      ->check(CLI::IsMember({"native", "kserve"}))
      ->group(group);
  app.add_option("--model", model, "of --protocol kserve: one with inputs q, k, v and an output named output")
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", seed, "of tensors, arrivals and the mix")->capture_default_str()->group(group);
  options.AddTo(app);
  app.get_option("--lengths")
      ->description("N of --shape drawn from zipf:EXPONENT (up to N) or lognormal:MEDIAN:SIGMA")
      ->group(group);
}

absl::StatusOr<Workload> WorkloadFlags::Make() const {
  const absl::StatusOr<ShapeFlag> parsed = ShapeFlag::Parse("--shape", shape);
  if (!parsed.ok()) return parsed.status();
  const absl::StatusOr<std::optional<DType>> convert = ParseWireDType(wire_dtype);
  if (!convert.ok()) return convert.status();
  if (!mix.empty() && !options.lengths.empty()) return UsageError("--mix and --lengths exclude each other");
  const Sketch base{1, *parsed, shape, dtype, {}};
  std::vector<Sketch> sketches = {base};
  if (mix == "decode") {
    sketches = DecodeMix(base);
  } else if (!mix.empty()) {
    absl::StatusOr<std::vector<Sketch>> read = ReadMix(mix, base);
    if (!read.ok()) return read.status();
    sketches = *std::move(read);
  } else if (!options.lengths.empty()) {
    const absl::StatusOr<std::vector<std::int64_t>> lengths = LengthsOf(options.lengths, base.shape.nq, kLengths);
    if (!lengths.ok()) return lengths.status();
    sketches.clear();
    for (const std::int64_t length : *lengths) {
      // Equal lengths are one item of more weight.
      if (!sketches.empty() && sketches.back().shape.nq == length) {
        ++sketches.back().weight;
        continue;
      }
      sketches.push_back(base);
      sketches.back().shape.nq = sketches.back().shape.nk = length;
    }
  }
  const std::optional<std::string> kserve_model = protocol == "kserve" ? std::optional(model) : std::nullopt;
  if (kserve_model && *convert) return UsageError("--wire_dtype: not with --protocol kserve, which sends --dtype");
  OptionFlags flags = options;
  flags.lengths.clear();
  std::mt19937_64 generator(seed);
  Workload workload;
  workload.convert = *convert;
  for (Sketch& sketch : sketches) {
    if (sketches.size() > 1 && mix.empty()) sketch.shape_text = ShapeTextOf(sketch.shape);
    if (mix == "decode") sketch.shape_text = ShapeTextOf(sketch.shape);
    absl::StatusOr<WorkItem> item = MakeItem(sketch, flags, *convert, kserve_model, generator);
    if (!item.ok()) return item.status();
    workload.items.push_back(*std::move(item));
  }
  return workload;
}

nlohmann::ordered_json Workload::ToJson() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const WorkItem& item : items) {
    json.push_back({{"weight", item.weight},
                    {"shape", item.shape},
                    {"dtype", item.dtype},
                    {"wire_dtype", convert ? Name(*convert) : absl::string_view(item.dtype)},
                    {"tensor_bytes", item.tensor_bytes}});
  }
  return json;
}

Picker::Picker(const Workload& workload, std::uint64_t seed) : workload_(workload), generator_(seed) {
  double sum = 0;
  for (const WorkItem& item : workload.items) sums_.push_back(sum += item.weight);
}

const WorkItem& Picker::Next() {
  if (sums_.size() == 1) return workload_.items.front();
  const double at = Uniform(generator_) * sums_.back();
  const auto found = std::upper_bound(sums_.begin(), sums_.end(), at);
  return workload_.items[static_cast<std::size_t>(std::min(found, sums_.end() - 1) - sums_.begin())];
}

}  // namespace attnd::client
