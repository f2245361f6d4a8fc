// Flags that commands share, and what they become.
// Thread rule: one thread.
#pragma once

#include <grpcpp/channel.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "absl/strings/string_view.h"

#include "absl/status/statusor.h"
#include "client/client.h"

namespace attnd::client {

// A mistake on the command line: exit code 2.
absl::Status UsageError(absl::string_view message);
bool IsUsageError(const absl::Status& status);

// "1,2,3". The error names the flag.
absl::StatusOr<std::vector<std::int64_t>> ParseIntegers(absl::string_view flag, absl::string_view text);
absl::StatusOr<std::vector<double>> ParseNumbers(absl::string_view flag, absl::string_view text);

// The type_name of an option that takes one of these words. Shells complete what stands in such braces.
constexpr char kFloatTypes[] = "{float32,float16,bfloat16,float64}";

// The float type that --wire_dtype names; nothing for an empty text.
absl::StatusOr<std::optional<DType>> ParseWireDType(absl::string_view text);

struct ServerFlags {
  std::string server = "127.0.0.1:50051";
  std::int64_t timeout_ms = 60000;
  std::int64_t attempts = 1;  // so that what a command says and measures is one call
  bool round_robin = false;
  Credentials credentials;

  void AddTo(CLI::App& app);
  absl::StatusOr<std::unique_ptr<Client>> Connect() const;
  // The connections alone.
  absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> ConnectChannels(int connections) const;
  // Adds what to do about it where the code says so.
  absl::Status Explain(const absl::Status& status) const;

 private:
  ClientOptions Options() const;
  absl::Status ExplainConnect(const absl::Status& status) const;
};

// B, Hq/Hkv, Nq, Nk, d_k/d_v.
struct ShapeFlag {
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, nq = 0, nk = 0, d_k = 0, d_v = 0;

  // "B,H,N,d" or "B,H,Nq,Nk,d"; H may be "Hq/Hkv", d may be "d_k/d_v".
  static absl::StatusOr<ShapeFlag> Parse(absl::string_view flag, absl::string_view text);
};

// Options of a problem by name, without tensors.
struct OptionFlags {
  std::optional<double> scale, softcap;
  bool causal = false;
  std::optional<std::int64_t> window_left, window_right;
  std::string q_offset, q_len, kv_len, lengths, alibi_slopes, sinks;
  std::string layout, output_dtype, mode, priority;
  std::string rotary_style;
  std::int64_t rotary_dim = 0;
  std::optional<double> rope_base;

  void AddTo(CLI::App& app);
  absl::StatusOr<v1::Layout> Layout() const;
  absl::StatusOr<v1::Priority> Priority() const;
  // Lists of one value are repeated to `batch`; rotary_dim 0 means `d_k`.
  absl::Status Apply(std::int64_t batch, std::int64_t d_k, v1::Options* options) const;
};

// A whole problem: tensors from files, and its options.
struct ProblemFlags {
  std::string q, k, v, x, npz, safetensors;
  std::vector<std::string> names;  // role=name, of what is in npz or safetensors
  std::string w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o;
  std::string mask, bias, q_positions, k_positions, page_table;
  std::int64_t q_heads = 1;
  std::optional<std::int64_t> kv_heads;
  bool weights_transposed = false;
  std::string weight_set;  // NAME or NAME@VERSION, instead of the weights
  std::string wire_dtype;
  OptionFlags options;

  void AddTo(CLI::App& app);
  // Those of the projection's tensors alone.
  void AddWeightsTo(CLI::App& app);
  // With it tensors may be `stored:NAME`, and weights a weight set: of those that a server has.
  void AddStoredTo(CLI::App& app);
  // Whether any tensor was named.
  bool AnyInput() const;
  // Whether anything is named that a server has.
  bool NamesStored() const;
  // The client is asked what stored tensors are like; not needed where none is named.
  absl::StatusOr<Problem> Load(Client* client = nullptr) const;
  absl::StatusOr<v1::Projection> LoadWeights() const;
};

}  // namespace attnd::client
