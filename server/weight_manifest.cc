#include "server/weight_manifest.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/safetensors_header.h"
#include "server/json_fields.h"

namespace attnd::server {
namespace {

using nlohmann::json;

constexpr int kDepthMax = 4;
constexpr std::size_t kFilesMax = 1000;

// object[key] as a whole number of at least 1.
absl::Status ReadNumber(const json& object, const std::string& path, const char* key, std::int64_t& number) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_number_unsigned() && found->get<std::uint64_t>() >= 1 &&
      found->get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    number = found->get<std::int64_t>();
    return absl::OkStatus();
  }
  return Wrong(absl::StrCat(path, ".", key), found == object.end() ? "absent" : Came(*found),
               "a whole number of at least 1");
}

absl::Status ReadRotary(const json& object, std::optional<RotaryInputs>& to) {
  if (absl::Status status = CheckKeys(object, "manifest.rotary", {"style", "rotary_dim", "rope_base"}); !status.ok())
    return status;
  RotaryInputs& rotary = to.emplace();
  const json style = object.value("style", json());
  if (style != "half" && style != "interleaved") {
    return Wrong("manifest.rotary.style", Came(style), "\"half\" or \"interleaved\"");
  }
  rotary.style = style == "half" ? RotaryStyle::kHalf : RotaryStyle::kInterleaved;
  absl::Status status = ReadNumber(object, "manifest.rotary", "rotary_dim", rotary.rotary_dim);
  if (!status.ok() || !object.contains("rope_base")) return status;
  const json& base = object["rope_base"];
  if (!base.is_number()) return Wrong("manifest.rotary.rope_base", Came(base), "a number");
  rotary.rope_base = base.get<double>();
  return absl::OkStatus();
}

// A name that leads nowhere but to a file beside the manifest.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

absl::Status ReadFiles(const json& list, std::vector<std::string>& files) {
  if (!list.is_array() || list.size() > kFilesMax) {
    return Wrong("manifest.files", Came(list), absl::StrCat("a list of at most ", kFilesMax, " names"));
  }
  for (const json& file : list) {
    if (!file.is_string() || !IsPlainName(file.get<std::string>())) {
      return Wrong("manifest.files", Came(file), "names of files in the manifest's folder");
    }
    files.push_back(file.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(const json& object, std::map<std::string, std::string>& tensors) {
  if (!object.is_object()) return Wrong("manifest.tensors", Came(object), "an object");
  for (const auto& [role, name] : object.items()) {
    const bool known = std::any_of(std::begin(kProjectionTensors), std::end(kProjectionTensors),
                                   [&role = role](const auto& tensor) { return tensor.first == role; });
    if (!known) return Wrong("manifest.tensors", Came(json(role)), "w_q, w_k, w_v, w_o, b_q, b_k, b_v or b_o");
    if (!name.is_string()) return Wrong(absl::StrCat("manifest.tensors.", role), Came(name), "a tensor's name");
    tensors[role] = name.get<std::string>();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightManifest> ParseManifest(absl::string_view text) {
  const std::optional<json> object = ParseJsonObject(text, kDepthMax);
  if (!object) return absl::InvalidArgumentError("manifest: not a JSON object with each name once");
  absl::Status status =
      CheckKeys(*object, "manifest",
                {"name", "version", "files", "q_heads", "kv_heads", "weights_transposed", "tensors", "rotary"});
  if (!status.ok()) return status;
  WeightManifest manifest;
  const json name = object->value("name", json());
  if (!name.is_string()) return Wrong("manifest.name", Came(name), "a string");
  manifest.head.name = name.get<std::string>();
  const json transposed = object->value("weights_transposed", json(false));
  if (!transposed.is_boolean()) return Wrong("manifest.weights_transposed", Came(transposed), "true or false");
  manifest.projection.weights_transposed = transposed.get<bool>();
  status.Update(ReadNumber(*object, "manifest", "version", manifest.head.version));
  status.Update(ReadNumber(*object, "manifest", "q_heads", manifest.projection.q_heads));
  status.Update(ReadNumber(*object, "manifest", "kv_heads", manifest.projection.kv_heads));
  status.Update(ReadTensors(object->value("tensors", json()), manifest.tensors));
  status.Update(ReadFiles(object->value("files", json::array()), manifest.files));
  if (object->contains("rotary")) status.Update(ReadRotary((*object)["rotary"], manifest.rotary));
  if (!status.ok()) return status;
  return manifest;
}

std::string WriteManifest(const WeightSet& set) {
  json manifest = {{"name", set.head.name},
                   {"version", set.head.version},
                   {"q_heads", set.projection.q_heads},
                   {"kv_heads", set.projection.kv_heads}};
  for (const auto& [role, member] : kProjectionTensors) {
    if ((set.projection.*member).has_value()) manifest["tensors"][std::string(role)] = std::string(role);
  }
  if (set.rotary) {
    manifest["rotary"] = {{"style", set.rotary->style == RotaryStyle::kHalf ? "half" : "interleaved"},
                          {"rotary_dim", set.rotary->rotary_dim}};
    if (set.rotary->rope_base) manifest["rotary"]["rope_base"] = *set.rotary->rope_base;
  }
  return manifest.dump();
}

}  // namespace attnd::server
