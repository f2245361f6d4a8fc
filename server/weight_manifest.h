// What a weight set is made of, as a manifest says it. JSON:
//
//   {"name": "llama.layer0", "version": 1,
//    "files": ["model-00001-of-00002.safetensors"],     names of files beside the manifest
//    "q_heads": 32, "kv_heads": 8, "weights_transposed": true,
//    "tensors": {"w_q": "model.layers.0.self_attn.q_proj.weight", "w_k": ..., "w_v": ..., "w_o": ..., "b_q": ...},
//    "rotary": {"style": "half", "rotary_dim": 128, "rope_base": 500000}}
//
// w_q, w_k and w_v are needed; weights_transposed (the tensors are [out, in]), rotary and its rope_base may be left
// out. Thread rule: pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/problem.h"
#include "server/weight_sets.h"

namespace attnd::server {

struct WeightManifest {
  WeightSetHead head;                          // without an owner
  std::vector<std::string> files;              // plain names
  ProjectionInputs projection;                 // without tensors
  std::map<std::string, std::string> tensors;  // role -> name in a file
  std::optional<RotaryInputs> rotary;
};

// INVALID_ARGUMENT names the field, what came and what was expected.
absl::StatusOr<WeightManifest> ParseManifest(absl::string_view text);

// The manifest of a set whose file's tensors are named by their roles; without "files".
std::string WriteManifest(const WeightSet& set);

}  // namespace attnd::server
