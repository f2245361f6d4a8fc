// Tensors and weight sets that stay on the server under a name, so that calls need not carry them
// (attnd/v1/store.proto):
//
//   Store store(**client);
//   auto keys = store.PutTensor("chat.k", k, {.append_axis = 2, .capacity = 4096});   // k: [B, H, N, d]
//   auto problem = Problem::FromQkv(q, WithoutBytes(*keys), WithoutBytes(*values));
//   problem->UseStored("k", "chat.k");
//   problem->UseStored("v", "chat.v");
//
// Errors keep the server's code and words; NOT_FOUND names a name that is not there. What only asks is asked again as
// RetryOptions allow; what changes something is asked once. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/v1/store.pb.h"
#include "client/array.h"
#include "client/client.h"

namespace attnd::client {

// How a tensor is kept.
struct StoredOptions {
  std::optional<std::int64_t> append_axis;  // the dimension along which rows may be appended
  std::int64_t capacity = 0;                // of that dimension, the most it may ever be
  std::int64_t ttl_ms = 0;                  // without a use; 0: the server's store_ttl_ms
};

// The dtype and shape of what is stored, without its bytes: what Problem::FromQkv takes before UseStored.
Array WithoutBytes(const v1::StoredTensor& stored);

class Store {
 public:
  // The client must live longer.
  explicit Store(Client& client);

  // In place of the tensor that had the name. In pieces, so of any size.
  absl::StatusOr<v1::StoredTensor> PutTensor(const std::string& name, const Array& tensor,
                                             const StoredOptions& stored = {}, const CallOptions& options = {});
  // Rows to all of the named, or to none.
  absl::StatusOr<std::vector<v1::StoredTensor>> AppendTensors(const v1::AppendTensorsRequest& request,
                                                              const CallOptions& options = {});
  absl::StatusOr<v1::StoredTensor> GetTensor(const std::string& name, const CallOptions& options = {});
  absl::StatusOr<std::vector<v1::StoredTensor>> ListTensors(const CallOptions& options = {});
  absl::Status DeleteTensor(const std::string& name, const CallOptions& options = {});

  absl::StatusOr<v1::StoredWeightSet> PutWeightSet(const v1::PutWeightSetRequest& request,
                                                   const CallOptions& options = {});
  // Version 0: the newest.
  absl::StatusOr<v1::StoredWeightSet> GetWeightSet(const std::string& name, std::int64_t version = 0,
                                                   const CallOptions& options = {});
  absl::StatusOr<std::vector<v1::StoredWeightSet>> ListWeightSets(const CallOptions& options = {});
  // Version 0: all of the name.
  absl::Status DeleteWeightSet(const std::string& name, std::int64_t version = 0, const CallOptions& options = {});

 private:
  ClientState& state_;
};

}  // namespace attnd::client
