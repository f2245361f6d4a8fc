// What the parts of Problem::Create share: the words of a refusal, and the checks that every tensor passes.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/problem.h"

namespace attnd {

// What StrCat takes: Debian 12's abseil has a string_view of its own beside the standard's.
template <typename T>
decltype(auto) Printable(const T& part) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return absl::string_view(part.data(), part.size());
  } else {
    return (part);
  }
}

// "field: what came, expected what".
template <typename... Parts>
absl::Status Refuse(absl::string_view field, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", Printable(parts)...));
}

// "k: shape [1,8,77,64], expected d_k = 128 as in q".
template <typename... Parts>
absl::Status RefuseShape(absl::string_view field, const InputTensor& tensor, const Parts&... expected) {
  return Refuse(field, "shape ", ShapeText(tensor.shape), ", expected ", expected...);
}

// A float type; float64 in reference mode only.
absl::Status CheckFloat(absl::string_view field, DType dtype, bool reference);

// No negative dimension, and a size in bytes that fits int64 even if every 0 were a 1, so that strides and tile sizes
// never overflow. Adds the bytes to `input_bytes` unless they are shared.
absl::Status CheckSize(absl::string_view field, const InputTensor& tensor, std::int64_t& input_bytes);

// Both of the above, and the rank; `dimensions` is what an error prints, such as "[B, Hq, Nq, d_k]".
absl::Status CheckFloatTensor(absl::string_view field, const InputTensor& tensor, std::size_t rank,
                              absl::string_view dimensions, bool reference, std::int64_t& input_bytes);

// q, k, v, or x and projection, into views and sizes. Allocates nothing that grows with B.
absl::Status ResolveTensors(const ProblemInputs& inputs, Problem& problem);

// Options, after tensors and limits.
absl::Status ResolveOptions(const OptionInputs& options, Problem& problem);

}  // namespace attnd

#define ATTND_RETURN_IF_ERROR(expression)                               \
  do {                                                                  \
    if (absl::Status attnd_status = (expression); !attnd_status.ok()) { \
      return attnd_status;                                              \
    }                                                                   \
  } while (false)
