#include "server/store.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/checked.h"
#include "core/clock.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

constexpr std::size_t kNotFoundBytes = 64;   // of a name in an error
constexpr std::int64_t kTensorBytes = 4096;  // what a tensor takes beside its elements, so that their number is bounded

absl::StatusOr<std::int64_t> BytesOf(const std::vector<std::int64_t>& shape, DType dtype) {
  std::vector<std::int64_t> factors = shape;
  factors.push_back(ElementBytes(dtype));
  const std::optional<std::int64_t> bytes = CheckedProduct(factors);
  if (!bytes.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("header.tensor: shape ", ShapeText(shape), " of ",
                                                   std::string(Name(dtype)),
                                                   " is more bytes than a 64-bit integer counts"));
  }
  return *bytes;
}

// Dimensions before the append axis: as many runs of rows lie apart.
std::int64_t RunsOf(const StoredSpec& spec) {
  if (!spec.append_axis.has_value()) return 1;
  return CheckedProduct({spec.shape.begin(), spec.shape.begin() + *spec.append_axis}).value_or(kStoredRunsMax + 1);
}

std::vector<std::int64_t> WithRows(const StoredSpec& spec, std::int64_t rows) {
  std::vector<std::int64_t> shape = spec.shape;
  if (spec.append_axis.has_value()) shape[static_cast<std::size_t>(*spec.append_axis)] = rows;
  return shape;
}

}  // namespace

absl::StatusOr<std::int64_t> CheckSpec(const StoredSpec& spec) {
  if (absl::Status status = CheckStoredName("header.name", spec.name); !status.ok()) return status;
  if (!spec.append_axis.has_value()) {
    if (spec.capacity != 0) return absl::InvalidArgumentError("header.capacity: given without append_axis");
  } else {
    const auto rank = static_cast<std::int64_t>(spec.shape.size());
    if (*spec.append_axis < 0 || *spec.append_axis >= rank) {
      return absl::InvalidArgumentError(
          absl::StrCat("header.append_axis: ", *spec.append_axis, ", expected a dimension of ", ShapeText(spec.shape)));
    }
    const std::int64_t rows = spec.shape[static_cast<std::size_t>(*spec.append_axis)];
    if (spec.capacity < std::max<std::int64_t>(rows, 1)) {
      return absl::InvalidArgumentError(absl::StrCat("header.capacity: ", spec.capacity, ", expected at least ",
                                                     std::max<std::int64_t>(rows, 1), ", which is there already"));
    }
    if (const std::int64_t runs = RunsOf(spec); runs > kStoredRunsMax) {
      return absl::InvalidArgumentError(absl::StrCat("header.append_axis: ", *spec.append_axis, ", expected at most ",
                                                     kStoredRunsMax, " elements in the dimensions before it"));
    }
  }
  const absl::StatusOr<std::int64_t> bytes = BytesOf(WithRows(spec, spec.capacity), spec.dtype);
  if (!bytes.ok()) return bytes.status();
  const std::optional<std::int64_t> sum = CheckedSum({*bytes, kTensorBytes});
  if (!sum.has_value()) return absl::InvalidArgumentError("header.tensor: too large to be counted");
  return *sum;
}

StoredTensor::StoredTensor(StoredSpec spec, StoreBytes taken) : spec_(std::move(spec)), taken_(std::move(taken)) {
  dense_bytes_ = BytesOf(spec_.shape, spec_.dtype).value();
  row_bytes_ = dense_bytes_;
  if (spec_.append_axis.has_value()) {
    const auto axis = static_cast<std::size_t>(*spec_.append_axis);
    row_bytes_ = BytesOf({spec_.shape.begin() + *spec_.append_axis + 1, spec_.shape.end()}, spec_.dtype).value();
    rows_ = spec_.shape[axis];
    rows_max_ = spec_.capacity;
  }
  bytes_ = AlignedBuffer<std::byte>(RunsOf(spec_) * rows_max_ * row_bytes_);
}

void StoredTensor::AddCopies(DataExtent data, std::int64_t offset_bytes, std::int64_t first, std::int64_t rows,
                             std::vector<DataCopy>& copies) const {
  const std::int64_t run_bytes = rows * row_bytes_;
  while (data.bytes > 0) {
    const std::int64_t run = offset_bytes / run_bytes, within = offset_bytes % run_bytes;
    const std::int64_t bytes = std::min(run_bytes - within, data.bytes);
    copies.push_back({{data.offset_bytes, bytes}, bytes_.data() + (run * rows_max_ + first) * row_bytes_ + within});
    data.offset_bytes += bytes;
    data.bytes -= bytes;
    offset_bytes += bytes;
  }
}

absl::StatusOr<std::shared_ptr<StoredTensor>> TensorStore::Make(StoredSpec spec, std::int64_t owner_bytes_max) {
  const absl::StatusOr<std::int64_t> bytes = CheckSpec(spec);
  if (!bytes.ok()) return bytes.status();
  if (spec.ttl < absl::ZeroDuration() || spec.ttl > ttl_max_) {
    return absl::InvalidArgumentError(absl::StrCat("header.ttl_ms: ", absl::ToInt64Milliseconds(spec.ttl),
                                                   ", expected 0 to ", absl::ToInt64Milliseconds(ttl_max_),
                                                   " (store_ttl_ms)"));
  }
  if (spec.ttl == absl::ZeroDuration()) spec.ttl = ttl_max_;
  absl::StatusOr<StoreBytes> taken =
      budget_.Take(spec.owner, absl::StrCat("bytes of tensor ", spec.name), *bytes, owner_bytes_max);
  if (!taken.ok()) return taken.status();
  return std::make_shared<StoredTensor>(std::move(spec), *std::move(taken));
}

StoredInfo TensorStore::InfoLocked(const StoredTensor& tensor) {
  StoredInfo info{tensor.spec_, tensor.taken_.bytes(), tensor.calls_};
  info.spec.shape = WithRows(tensor.spec_, tensor.rows_);
  return info;
}

StoredInfo TensorStore::Publish(std::shared_ptr<StoredTensor> tensor) {
  std::shared_ptr<StoredTensor> before;  // goes after the lock
  const std::lock_guard lock(mutex_);
  tensor->used_ = Now();
  const StoredInfo info = InfoLocked(*tensor);
  before = std::exchange(tensors_[{info.spec.owner, info.spec.name}], std::move(tensor));
  return info;
}

absl::StatusOr<std::shared_ptr<StoredTensor>> TensorStore::FindLocked(const std::string& owner,
                                                                      absl::string_view name) const {
  const auto found = tensors_.find({owner, std::string(name)});
  if (found != tensors_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat("\"", absl::CEscape(name.substr(0, kNotFoundBytes)),
                                          "\", expected the name of a stored tensor of this caller's"));
}

absl::Status TensorStore::CheckRows(const StoredTensor& tensor, const InputTensor& rows) {
  const StoredSpec& spec = tensor.spec_;
  if (!spec.append_axis.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("name: \"", spec.name, "\" was put without an append_axis"));
  }
  const auto axis = static_cast<std::size_t>(*spec.append_axis);
  const std::int64_t count = rows.shape.size() > axis ? rows.shape[axis] : 0;
  if (rows.dtype != spec.dtype || rows.shape != WithRows(spec, count)) {
    return absl::InvalidArgumentError(absl::StrCat("rows: ", std::string(Name(rows.dtype)), " ", ShapeText(rows.shape),
                                                   ", expected ", std::string(Name(spec.dtype)), " ",
                                                   ShapeText(WithRows(spec, -1)), ", where -1 is any"));
  }
  return absl::OkStatus();
}

absl::Status TensorStore::CheckLength(const StoredTensor& tensor, const Rows& append, std::int64_t more) {
  if (append.length_before.has_value() && *append.length_before != tensor.rows_) {
    return absl::FailedPreconditionError(
        absl::StrCat("length_before: ", *append.length_before, ", but \"", append.name, "\" has ", tensor.rows_));
  }
  if (more <= tensor.rows_max_ - tensor.rows_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("rows: ", more, " more than the ", tensor.rows_, " of \"",
                                                   append.name, "\" needed, ", tensor.rows_max_,
                                                   " in all allowed (its capacity)"));
}

absl::StatusOr<std::vector<StoredInfo>> TensorStore::Append(
    const std::string& owner, const std::vector<Rows>& appends,
    absl::FunctionRef<void(std::vector<DataCopy> copies)> copy) {
  const auto at = [](std::size_t i, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("appends[", i, "].", status.message()));
  };
  std::map<std::string, std::shared_ptr<StoredTensor>>
      tensors;  // in one order, so that two appends never wait in a ring
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < appends.size(); ++i) {
      absl::StatusOr<std::shared_ptr<StoredTensor>> tensor = FindLocked(owner, appends[i].name);
      if (!tensor.ok()) return at(i, AtField("name", tensor.status()));
      if (absl::Status status = CheckRows(**tensor, appends[i].rows); !status.ok()) return at(i, status);
      if (!tensors.emplace(appends[i].name, *std::move(tensor)).second) {
        return at(i, absl::InvalidArgumentError(
                         absl::StrCat("name: \"", appends[i].name, "\" a second time, expected each once")));
      }
    }
  }
  std::vector<std::unique_lock<std::mutex>> appending;
  for (const auto& [name, tensor] : tensors) appending.emplace_back(tensor->append_mutex_);
  const auto rows_of = [&](std::size_t i) {
    const StoredTensor& tensor = *tensors.at(appends[i].name);
    return appends[i].rows.shape[static_cast<std::size_t>(*tensor.spec_.append_axis)];
  };
  std::vector<DataCopy> copies;
  for (std::size_t i = 0; i < appends.size(); ++i) {
    const StoredTensor& tensor = *tensors.at(appends[i].name);
    const std::int64_t more = rows_of(i);
    // Only appending changes rows_, under the lock that is held.
    if (absl::Status status = CheckLength(tensor, appends[i], more); !status.ok()) return at(i, status);
    tensor.AddCopies(appends[i].data, 0, tensor.rows_, more, copies);
  }
  // Behind the rows that anyone sees.
  copy(std::move(copies));
  std::vector<StoredInfo> infos;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < appends.size(); ++i) {
    StoredTensor& tensor = *tensors.at(appends[i].name);
    tensor.rows_ += rows_of(i);
    tensor.used_ = Now();
    infos.push_back(InfoLocked(tensor));
  }
  return infos;
}

absl::StatusOr<StoredInfo> TensorStore::Get(const std::string& owner, absl::string_view name) const {
  const std::lock_guard lock(mutex_);
  const absl::StatusOr<std::shared_ptr<StoredTensor>> tensor = FindLocked(owner, name);
  if (!tensor.ok()) return tensor.status();
  return InfoLocked(**tensor);
}

std::vector<StoredInfo> TensorStore::List(const std::string& owner) const {
  std::vector<StoredInfo> infos;
  const std::lock_guard lock(mutex_);
  for (auto it = tensors_.lower_bound({owner, ""}); it != tensors_.end() && it->first.first == owner; ++it) {
    infos.push_back(InfoLocked(*it->second));
  }
  return infos;
}

absl::Status TensorStore::Delete(const std::string& owner, absl::string_view name) {
  std::shared_ptr<StoredTensor> last;  // goes after the lock
  const std::lock_guard lock(mutex_);
  absl::StatusOr<std::shared_ptr<StoredTensor>> tensor = FindLocked(owner, name);
  if (!tensor.ok()) return tensor.status();
  last = *std::move(tensor);
  tensors_.erase({owner, std::string(name)});
  return absl::OkStatus();
}

absl::StatusOr<InputTensor> TensorStore::UseLocked(const std::string& owner, absl::string_view name, Held& held) {
  // Counts itself among the tensor's calls.
  struct Use {
    explicit Use(std::shared_ptr<StoredTensor> used) : tensor(std::move(used)) { ++tensor->calls_; }
    ~Use() { --tensor->calls_; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    const std::shared_ptr<StoredTensor> tensor;
  };
  absl::StatusOr<std::shared_ptr<StoredTensor>> found = FindLocked(owner, name);
  if (!found.ok()) return found.status();
  StoredTensor& tensor = **found;
  held.push_back(std::make_shared<const Use>(*std::move(found)));
  tensor.used_ = Now();
  InputTensor view;
  view.dtype = tensor.spec_.dtype;
  view.shape = WithRows(tensor.spec_, tensor.rows_);
  view.shared = true;
  if (RunsOf(tensor.spec_) > 1) view.room = WithRows(tensor.spec_, tensor.rows_max_);
  if (tensor.bytes_.count() > 0) view.data = tensor.bytes_.data();
  return view;
}

absl::StatusOr<InputTensor> StoredNames::Tensor(absl::string_view name, Held& held) {
  if (!lock_.owns_lock()) lock_ = std::unique_lock(store_.mutex_);
  return store_.UseLocked(owner_, name, held);
}

std::int64_t TensorStore::tensors() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(tensors_.size());
}

void TensorStore::Tick(absl::Time now) {
  std::vector<std::shared_ptr<StoredTensor>> gone;  // after the lock
  const std::lock_guard lock(mutex_);
  for (auto it = tensors_.begin(); it != tensors_.end();) {
    StoredTensor& tensor = *it->second;
    if (tensor.calls_ > 0) tensor.used_ = now;
    if (now - tensor.used_ < tensor.spec_.ttl) {
      ++it;
      continue;
    }
    gone.push_back(std::move(it->second));
    it = tensors_.erase(it);
  }
}

}  // namespace attnd::server
