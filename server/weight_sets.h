// Weight sets by name and version: projection weights that stay on the server, in the form that the kernel wants, and
// that any number of problems share.
//
// A problem that began with a set ends with it: it holds a reference, whatever happens to the name. A set's memory is
// counted once, in the store's budget, and given back with the last reference.
// Thread rule: Find, List and the sums from any thread. Changes (Make to Remove) from one thread at a time, which is
// WeightFiles' own. The StoreBudget outlives every set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/buffer.h"
#include "core/problem.h"
#include "server/store_budget.h"
#include "server/wire/decode.h"

namespace attnd::server {

// What tensors a projection has, as the wire, manifests and files of sets name them. "w_..." are matrices.
using ProjectionTensor = std::optional<InputTensor> ProjectionInputs::*;
constexpr std::pair<absl::string_view, ProjectionTensor> kProjectionTensors[] = {
    {"w_q", &ProjectionInputs::w_q}, {"w_k", &ProjectionInputs::w_k}, {"w_v", &ProjectionInputs::w_v},
    {"b_q", &ProjectionInputs::b_q}, {"b_k", &ProjectionInputs::b_k}, {"b_v", &ProjectionInputs::b_v},
    {"w_o", &ProjectionInputs::w_o}, {"b_o", &ProjectionInputs::b_o}};

struct WeightSetHead {
  std::string name;
  std::int64_t version = 0;  // 0, of one that is asked for: the next
  std::string owner;         // an identity; empty: everyone's
  bool from_file = false;    // the operator's: no call changes it
};

struct WeightSet {
  WeightSetHead head;
  ProjectionInputs projection;         // w_*: [in, out], b_*: [out], of the types that came
  std::optional<RotaryInputs> rotary;  // without positions
  std::int64_t bytes = 0;
  std::map<absl::string_view, AlignedBuffer<std::byte>> buffers;  // by role: what the projection's tensors point to
  StoreBytes held;
};

// Brings one tensor's bytes, which come in order and cut anywhere, into a set's form: a matrix that comes as [out, in]
// becomes [in, out], through a block of about 1 MiB. Thread rule: one owner.
class FormWriter {
 public:
  // `came`: its type and the shape in which it comes.
  FormWriter(const InputTensor& came, bool transposes, std::byte* to);
  void Append(absl::string_view part);

 private:
  void PlaceRows();

  const std::int64_t element_bytes_;
  std::int64_t rows_ = 0, columns_ = 0;  // as it comes; 0: it keeps its form
  std::byte* const to_;
  std::int64_t at_ = 0;  // bytes that came; of a matrix that is transposed, rows that were placed
  std::vector<std::byte> rows_held_;
  std::size_t block_bytes_ = 0;  // of rows_held_, when it is full
};

// Of one tensor that came, to its place in a set that Make made of them.
FormWriter WriterOf(WeightSet& set, const ProjectionInputs& came, absl::string_view role, ProjectionTensor member);

class WeightSets {
 public:
  WeightSets(StoreBudget& budget, const ProblemLimits& limits) : budget_(budget), limits_(limits) {}

  struct Listed {
    std::shared_ptr<const WeightSet> set;
    std::int64_t calls = 0;  // that hold it, beside this
  };
  // Version 0: the newest. NOT_FOUND, INVALID_ARGUMENT; errors name `field`.
  absl::StatusOr<Listed> Find(absl::string_view field, const std::string& name, std::int64_t version) const;
  // By name and version: all, or those of one name, or one version of it.
  std::vector<Listed> List(absl::string_view name = {}, std::int64_t version = 0) const;
  std::int64_t size() const;

  // A set of tensors that come in these shapes, for which memory is taken, of the `owner_bytes_max` that its owner may
  // keep together; its tensors have room for their bytes, in their form, and nobody sees it. `came` needs no data.
  // Errors name the wire's fields: INVALID_ARGUMENT for what means nothing, PERMISSION_DENIED when the name is
  // another's, ALREADY_EXISTS, RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<WeightSet>> Make(WeightSetHead head, const ProjectionInputs& came,
                                                  std::optional<RotaryInputs> rotary,
                                                  std::int64_t owner_bytes_max = StoreBudget::kNoLimit) const;
  // What Make did, live: problems that begin from here on see it. Of an operator's, in place of the same version.
  void Publish(std::shared_ptr<const WeightSet> set);
  // What `owner` would take away: one version, or all of a name with 0. NOT_FOUND, PERMISSION_DENIED.
  absl::StatusOr<std::vector<std::shared_ptr<const WeightSet>>> ToRemove(absl::string_view owner,
                                                                         const std::string& name,
                                                                         std::int64_t version) const;
  void Remove(const WeightSetHead& head);

 private:
  using Versions = std::map<std::int64_t, std::shared_ptr<const WeightSet>>;

  absl::Status CheckHead(WeightSetHead& head) const;

  StoreBudget& budget_;
  const ProblemLimits limits_;
  mutable std::mutex mutex_;
  std::map<std::string, Versions, std::less<>> sets_;  // guarded by mutex_; no name without versions
};

// The set that a request names, in the place of a projection. It stays while `decoded` does.
absl::Status UseWeightSet(const WeightSets& sets, const v1::AttendRequest& request, DecodedProblem& decoded);

// "weight set llama.layer0 version 3", for errors and logs.
std::string Describe(const WeightSetHead& head);

}  // namespace attnd::server
