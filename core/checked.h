// The only product of dimensions in the project: multiplication and addition of sizes that cannot wrap silently.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

namespace attnd {

// The product, or nothing when it does not fit int64. Factors must be >= 0.
constexpr std::optional<std::int64_t> CheckedProduct(std::span<const std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (factor == 0) return 0;
  }
  for (const std::int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  }
  return product;
}
constexpr std::optional<std::int64_t> CheckedProduct(std::initializer_list<std::int64_t> factors) {
  return CheckedProduct(std::span<const std::int64_t>(factors.begin(), factors.size()));
}

// The sum, or nothing when it does not fit int64.
constexpr std::optional<std::int64_t> CheckedSum(std::initializer_list<std::int64_t> terms) {
  std::int64_t sum = 0;
  for (const std::int64_t term : terms) {
    if (__builtin_add_overflow(sum, term, &sum)) return std::nullopt;
  }
  return sum;
}

// ceil(amount / step) for amount >= 0, step > 0.
constexpr std::int64_t CeilDiv(std::int64_t amount, std::int64_t step) { return amount / step + (amount % step != 0); }

}  // namespace attnd
