// Tensors that callers put on the server under names, each its owner's alone.
//
// A problem that began with a tensor reads the same rows to its end: putting another one in its place, or deleting it,
// only takes the name away, and rows that are appended lie behind those it sees. What nobody has used for its time to
// live goes. Thread rule: every function from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/buffer.h"
#include "core/problem.h"
#include "proto/wire/raw_message.h"
#include "server/stall_watch.h"
#include "server/store_budget.h"
#include "server/wire/decode.h"

namespace attnd::server {

// What a tensor is to be that is put. Rows may be appended along `append_axis` up to `capacity`.
struct StoredSpec {
  std::string owner, name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::optional<std::int64_t> append_axis;
  std::int64_t capacity = 0;  // with append_axis only
  absl::Duration ttl;
};

// A tensor's memory. Its rows are counted along the append axis; without one it has a single row, which is all of it.
class StoredTensor {
 public:
  // Of a spec that CheckSpec accepted; `taken` is for its bytes. Allocates.
  StoredTensor(StoredSpec spec, StoreBytes taken);

  std::int64_t data_bytes() const { return dense_bytes_; }  // of the rows that it is put with

  // Where `data` of a message goes: the bytes from offset_bytes on of `rows` dense rows that stand from `first` on.
  void AddCopies(DataExtent data, std::int64_t offset_bytes, std::int64_t first, std::int64_t rows,
                 std::vector<DataCopy>& copies) const;
  // The same for the rows that it is put with.
  void AddCopies(DataExtent data, std::int64_t offset_bytes, std::vector<DataCopy>& copies) const {
    AddCopies(data, offset_bytes, 0, rows_, copies);
  }

 private:
  friend class TensorStore;

  const StoredSpec spec_;  // its shape is as it was put
  const StoreBytes taken_;
  std::int64_t row_bytes_ = 0, rows_max_ = 1, dense_bytes_ = 0;
  AlignedBuffer<std::byte> bytes_;
  std::mutex append_mutex_;  // taken before the store's
  std::atomic<std::int64_t> calls_{0};
  std::int64_t rows_ = 1;  // guarded by the store's lock once it has its name, like the next
  absl::Time used_;
};

// How many runs of rows may lie apart: so many copies are made of a message.
constexpr std::int64_t kStoredRunsMax = std::int64_t{1} << 16;

// Bytes of memory that it takes, with its capacity. INVALID_ARGUMENT names the field of PutTensorHeader.
absl::StatusOr<std::int64_t> CheckSpec(const StoredSpec& spec);

// What is known of a stored tensor.
struct StoredInfo {
  StoredSpec spec;  // with the shape that it has now
  std::int64_t bytes = 0;
  std::int64_t calls = 0;
};

class TensorStore final : public Watched {
 public:
  // ttl_max is the flag store_ttl_ms.
  TensorStore(StoreBudget& budget, absl::Duration ttl_max) : budget_(budget), ttl_max_(ttl_max) {}

  // Memory for a tensor that has not got its name yet; a ttl of 0 is store_ttl_ms. Its owner may keep
  // `owner_bytes_max` together. INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<StoredTensor>> Make(StoredSpec spec,
                                                     std::int64_t owner_bytes_max = StoreBudget::kNoLimit);
  // Gives it its name.
  StoredInfo Publish(std::shared_ptr<StoredTensor> tensor);

  // Rows for one tensor, whose bytes are in a message.
  struct Rows {
    std::string name;
    InputTensor rows;
    DataExtent data;
    std::optional<std::int64_t> length_before{};
  };
  // All or none; `copy` moves the bytes to where they belong. NOT_FOUND, INVALID_ARGUMENT, FAILED_PRECONDITION.
  absl::StatusOr<std::vector<StoredInfo>> Append(const std::string& owner, const std::vector<Rows>& appends,
                                                 absl::FunctionRef<void(std::vector<DataCopy> copies)> copy);

  absl::StatusOr<StoredInfo> Get(const std::string& owner, absl::string_view name) const;
  std::vector<StoredInfo> List(const std::string& owner) const;
  absl::Status Delete(const std::string& owner, absl::string_view name);

  std::int64_t tensors() const;

  // Lets go of what was not used for its time to live.
  void Tick(absl::Time now) override;

 private:
  friend class StoredNames;
  using Key = std::pair<std::string, std::string>;  // owner, name
  absl::StatusOr<std::shared_ptr<StoredTensor>> FindLocked(const std::string& owner, absl::string_view name) const;
  // The tensor is used from now on until `held` is gone.
  absl::StatusOr<InputTensor> UseLocked(const std::string& owner, absl::string_view name, Held& held);
  static StoredInfo InfoLocked(const StoredTensor& tensor);
  // What an append's words are about: "name", "rows", "length_before".
  static absl::Status CheckRows(const StoredTensor& tensor, const InputTensor& rows);
  static absl::Status CheckLength(const StoredTensor& tensor, const Rows& append, std::int64_t more);

  StoreBudget& budget_;
  const absl::Duration ttl_max_;
  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<StoredTensor>> tensors_;
};

// The store as one caller sees it, in one moment: rows that are appended to k and v together are seen of both or of
// neither. Holds the store's lock from the first name on.
class StoredNames final : public Names {
 public:
  StoredNames(TensorStore& store, std::string owner) : store_(store), owner_(std::move(owner)) {}
  absl::StatusOr<InputTensor> Tensor(absl::string_view name, Held& held) override;

 private:
  TensorStore& store_;
  const std::string owner_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace attnd::server
