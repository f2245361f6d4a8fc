// A safetensors file that weights are read from: opened and checked once, then read by pread, so that a file which is
// cut short meanwhile is an error and not the end of the process. Thread rule: one owner; Read from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/problem.h"
#include "proto/wire/safetensors_header.h"

namespace attnd::server {

// An open file, closed by the destructor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_;  // -1: none
};

class WeightSource {
 public:
  // `name` in the folder. INVALID_ARGUMENT for what is not such a file, UNAVAILABLE for what cannot be read.
  static absl::StatusOr<WeightSource> Open(const Descriptor& folder, const std::string& name);

  const SafetensorsHeader& header() const { return header_; }
  const std::string& name() const { return name_; }

  // Type and shape, without data. INVALID_ARGUMENT when weights are never of this type.
  absl::StatusOr<InputTensor> Describe(const SafetensorsTensor& tensor) const;

  // Hands over the tensor's bytes in order. UNAVAILABLE when the file ends before they do.
  absl::Status Read(const SafetensorsTensor& tensor, absl::FunctionRef<void(absl::string_view part)> take) const;

 private:
  absl::Status ReadAt(std::uint64_t offset, std::size_t bytes, char* to) const;

  std::string name_;
  Descriptor file_;
  SafetensorsHeader header_;
};

// "F32", ... of a type that weights have.
absl::string_view SafetensorsName(DType dtype);

}  // namespace attnd::server
