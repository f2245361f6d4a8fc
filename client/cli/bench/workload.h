// What is asked: weighted problems, made from a seed and encoded once.
// Thread rule: a Workload does not change once it is made; Picker belongs to one thread.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/flags.h"
#include "client/encode.h"
#include "client/wire.h"

namespace attnd::client {

struct WorkItem {
  double weight = 1;
  std::string shape, dtype;
  Problem problem;                // as it is sent; as the caller has it where every call converts
  grpc::ByteBuffer message;       // of Attend, or of ModelInfer
  bool kserve = false;            // of ModelInfer
  StreamParts parts;              // of AttendStream
  double tensor_bytes = 0;        // both ways, as they travel
  std::int64_t output_bytes = 0;  // of the reply's output
  double tokens = 0;              // query rows of all sequences
};

struct Workload {
  std::vector<WorkItem> items;
  std::optional<DType> convert;  // every call converts to this and back, as a caller with other arrays would

  nlohmann::ordered_json ToJson() const;
};

struct WorkloadFlags {
  std::string shape = "1,8,512,64", dtype = "float32", wire_dtype, mix;
  std::string protocol = "native", model = "attention";
  std::uint64_t seed = 0;
  OptionFlags options;

  void AddTo(CLI::App& app);
  // A mix file's items have their own shape and dtype where they say so, and options beside those of the command line.
  absl::StatusOr<Workload> Make() const;
};

// Items by their weights, from a seed.
class Picker {
 public:
  Picker(const Workload& workload, std::uint64_t seed);
  const WorkItem& Next();

 private:
  const Workload& workload_;
  std::mt19937_64 generator_;
  std::vector<double> sums_;  // of weights up to and with each item
};

// Lengths at the middle of each of `count` equal shares of a distribution, each at least 1 and at most `most`:
// "zipf:S" (P(n) is as n^-S for n = 1 ... most) or "lognormal:MEDIAN:SIGMA". Usage errors name --lengths.
absl::StatusOr<std::vector<std::int64_t>> LengthsOf(absl::string_view text, std::int64_t most, std::size_t count);

}  // namespace attnd::client
