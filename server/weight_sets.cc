#include "server/weight_sets.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/checked.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kBlockBytes = 1 << 20;
constexpr absl::string_view kOperator = "the operator";  // as an owner: no identity's name has a space

// rows x columns elements -> to [columns, to_stride], elements of T, which lie anywhere.
template <typename T>
void Transpose(const std::byte* from, std::int64_t rows, std::int64_t columns, std::byte* to, std::int64_t to_stride) {
  for (std::int64_t column = 0; column < columns; ++column) {
    for (std::int64_t row = 0; row < rows; ++row) {
      std::memcpy(to + (column * to_stride + row) * static_cast<std::int64_t>(sizeof(T)),
                  from + (row * columns + column) * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    }
  }
}

// By the rules of every problem: these weights, with no row.
absl::Status CheckMeaning(const ProjectionInputs& projection, const std::optional<RotaryInputs>& rotary,
                          const ProblemLimits& limits) {
  std::int64_t d_model = 1;
  if (projection.w_q && projection.w_q->shape.size() == 2) {
    d_model = std::max<std::int64_t>(1, projection.w_q->shape[projection.weights_transposed ? 1 : 0]);
  }
  ProblemInputs inputs;
  inputs.x = InputTensor{DType::kFloat32, {1, 0, d_model}};
  inputs.projection = projection;
  inputs.options.rotary = rotary;
  const absl::Status status = Problem::Create(inputs, limits).status();
  // A set's rotary is no option.
  return absl::Status(status.code(), absl::StripPrefix(status.message(), "options."));
}

bool MayChange(absl::string_view owner, const WeightSetHead& head) {
  return !head.from_file && (head.owner.empty() || head.owner == owner);
}

absl::Status NotYours(const WeightSetHead& head) {
  return absl::PermissionDeniedError(
      absl::StrCat("name: \"", head.name, "\" belongs to ", head.from_file ? "the operator" : "another identity"));
}

}  // namespace

FormWriter::FormWriter(const InputTensor& came, bool transposes, std::byte* to)
    : element_bytes_(ElementBytes(came.dtype)), to_(to) {
  if (!transposes) return;
  rows_ = came.shape[0];
  columns_ = came.shape[1];
  const std::int64_t row_bytes = columns_ * element_bytes_;
  block_bytes_ = static_cast<std::size_t>(row_bytes * std::clamp<std::int64_t>(kBlockBytes / row_bytes, 1, rows_));
  rows_held_.reserve(block_bytes_);
}

void FormWriter::Append(absl::string_view part) {
  if (columns_ == 0) {
    std::memcpy(to_ + at_, part.data(), part.size());
    at_ += static_cast<std::int64_t>(part.size());
    return;
  }
  while (!part.empty()) {
    const absl::string_view taken = part.substr(0, block_bytes_ - rows_held_.size());
    const auto* const bytes = reinterpret_cast<const std::byte*>(taken.data());
    rows_held_.insert(rows_held_.end(), bytes, bytes + taken.size());
    part.remove_prefix(taken.size());
    const std::int64_t rows = static_cast<std::int64_t>(rows_held_.size()) / (columns_ * element_bytes_);
    if (rows_held_.size() == block_bytes_ || at_ + rows == rows_) PlaceRows();
  }
}

void FormWriter::PlaceRows() {
  const std::int64_t rows = static_cast<std::int64_t>(rows_held_.size()) / (columns_ * element_bytes_);
  std::byte* const to = to_ + at_ * element_bytes_;
  if (element_bytes_ == 2) {
    Transpose<std::uint16_t>(rows_held_.data(), rows, columns_, to, rows_);
  } else {
    Transpose<float>(rows_held_.data(), rows, columns_, to, rows_);
  }
  at_ += rows;
  rows_held_.clear();
}

FormWriter WriterOf(WeightSet& set, const ProjectionInputs& came, absl::string_view role, ProjectionTensor member) {
  const InputTensor& tensor = *(came.*member);
  return FormWriter(tensor, came.weights_transposed && tensor.shape.size() == 2, set.buffers.at(role).data());
}

absl::Status UseWeightSet(const WeightSets& sets, const v1::AttendRequest& request, DecodedProblem& decoded) {
  if (!request.has_weight_set()) return absl::OkStatus();
  ProblemInputs& inputs = decoded.inputs;
  if (inputs.projection) {
    return absl::InvalidArgumentError("weight_set: given together with projection, expected one of them");
  }
  if (!inputs.x) return absl::InvalidArgumentError("weight_set: given without x");
  const absl::StatusOr<WeightSets::Listed> found =
      sets.Find("weight_set.name", request.weight_set().name(), request.weight_set().version());
  if (!found.ok()) return found.status();
  const WeightSet& set = *found->set;
  inputs.projection = set.projection;
  if (!inputs.options.rotary) inputs.options.rotary = set.rotary;
  decoded.held.push_back(found->set);
  return absl::OkStatus();
}

std::string Describe(const WeightSetHead& head) {
  return absl::StrCat("weight set ", head.name, head.version == 0 ? "" : absl::StrCat(" version ", head.version));
}

absl::StatusOr<WeightSets::Listed> WeightSets::Find(absl::string_view field, const std::string& name,
                                                    std::int64_t version) const {
  if (absl::Status status = CheckStoredName(field, name); !status.ok()) return status;
  std::vector<Listed> found = List(name, version);
  if (found.empty()) return absl::NotFoundError(absl::StrCat(field, ": no ", Describe({name, version, {}})));
  return std::move(found.back());
}

std::vector<WeightSets::Listed> WeightSets::List(absl::string_view name, std::int64_t version) const {
  std::vector<Listed> listed;
  const std::lock_guard lock(mutex_);
  const auto [first, last] = name.empty() ? std::pair(sets_.begin(), sets_.end()) : sets_.equal_range(name);
  for (auto named = first; named != last; ++named) {
    for (const auto& [number, set] : named->second) {
      if (version != 0 && number != version) continue;
      const std::int64_t calls = set.use_count() - 1;  // before one more is here
      listed.push_back({set, calls});
    }
  }
  return listed;
}

std::int64_t WeightSets::size() const {
  const std::lock_guard lock(mutex_);
  std::int64_t size = 0;
  for (const auto& [name, versions] : sets_) size += static_cast<std::int64_t>(versions.size());
  return size;
}

absl::Status WeightSets::CheckHead(WeightSetHead& head) const {
  if (absl::Status status = CheckStoredName("name", head.name); !status.ok()) return status;
  if (head.version < 0) {
    return absl::InvalidArgumentError(absl::StrCat("version: ", head.version, ", expected at least 0"));
  }
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(head.name);
  if (found == sets_.end()) {
    if (head.version == 0) head.version = 1;
    return absl::OkStatus();
  }
  const Versions& versions = found->second;
  for (const auto& [version, set] : versions) {
    if (head.from_file ? !set->head.from_file : !MayChange(head.owner, set->head)) return NotYours(set->head);
  }
  if (head.version == 0) {
    const std::optional<std::int64_t> next = CheckedSum({versions.rbegin()->first, 1});
    if (!next) return absl::InvalidArgumentError("version: 0, expected a number, since the newest is the largest");
    head.version = *next;
  }
  if (!head.from_file && versions.contains(head.version)) {
    return absl::AlreadyExistsError(absl::StrCat("version: ", Describe(head), " is there, expected another, or 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<WeightSet>> WeightSets::Make(WeightSetHead head, const ProjectionInputs& came,
                                                            std::optional<RotaryInputs> rotary,
                                                            std::int64_t owner_bytes_max) const {
  if (absl::Status status = CheckHead(head); !status.ok()) return status;
  if (rotary && (rotary->q_positions || rotary->k_positions)) {
    return absl::InvalidArgumentError("rotary: with positions, expected none: a call's rows have theirs");
  }
  if (absl::Status status = CheckMeaning(came, rotary, limits_); !status.ok()) return status;
  auto set = std::make_shared<WeightSet>();
  set->head = std::move(head);
  set->projection = came;
  set->projection.weights_transposed = false;
  set->rotary = std::move(rotary);
  for (const auto& [role, member] : kProjectionTensors) {
    std::optional<InputTensor>& tensor = set->projection.*member;
    if (!tensor) continue;
    *tensor = {tensor->dtype, tensor->shape};
    tensor->shared = true;
    if (came.weights_transposed && tensor->shape.size() == 2) std::swap(tensor->shape[0], tensor->shape[1]);
    set->bytes += TensorBytes(*tensor);  // all of them together fit: CheckMeaning
  }
  absl::StatusOr<StoreBytes> held =
      budget_.Take(set->head.from_file ? kOperator : set->head.owner, Describe(set->head), set->bytes, owner_bytes_max);
  if (!held.ok()) return held.status();
  set->held = *std::move(held);
  for (const auto& [role, member] : kProjectionTensors) {
    std::optional<InputTensor>& tensor = set->projection.*member;
    if (tensor) tensor->data = set->buffers.emplace(role, TensorBytes(*tensor)).first->second.data();
  }
  return set;
}

void WeightSets::Publish(std::shared_ptr<const WeightSet> set) {
  const std::lock_guard lock(mutex_);
  sets_[set->head.name][set->head.version].swap(set);  // the one before, if any, goes after the lock
}

absl::StatusOr<std::vector<std::shared_ptr<const WeightSet>>> WeightSets::ToRemove(absl::string_view owner,
                                                                                   const std::string& name,
                                                                                   std::int64_t version) const {
  if (absl::Status status = CheckStoredName("name", name); !status.ok()) return status;
  std::vector<std::shared_ptr<const WeightSet>> sets;
  for (Listed& listed : List(name, version)) {
    if (!MayChange(owner, listed.set->head)) return NotYours(listed.set->head);
    sets.push_back(std::move(listed.set));
  }
  if (sets.empty()) return absl::NotFoundError(absl::StrCat("name: no ", Describe({name, version, {}})));
  return sets;
}

void WeightSets::Remove(const WeightSetHead& head) {
  Versions::node_type removed;  // freed after the lock
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(head.name);
  if (found == sets_.end()) return;
  removed = found->second.extract(head.version);
  if (found->second.empty()) sets_.erase(found);
}

}  // namespace attnd::server
