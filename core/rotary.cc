#include "core/rotary.h"

#include <cmath>

namespace attnd {

std::int64_t RotaryScratchBytes(const Rotary& rotary) { return rotary.rotary_dim * 4; }

std::int64_t QueryPosition(const Problem& problem, std::int64_t b, std::int64_t n) {
  if (problem.rotary->has_q_positions) return LoadInt64(problem.rotary->q_positions, b * problem.q_rows + n);
  return n + problem.q_offset[static_cast<std::size_t>(b)];
}

std::int64_t KeyPosition(const Problem& problem, std::int64_t b, std::int64_t n) {
  return problem.rotary->has_k_positions ? LoadInt64(problem.rotary->k_positions, b * problem.kv_rows + n) : n;
}

void RotateToken(const Rotary& rotary, std::int64_t position, float* rows, std::int64_t heads, std::int64_t stride,
                 std::byte* scratch) {
  const std::int64_t pairs = rotary.rotary_dim / 2;
  const bool half = rotary.style == RotaryStyle::kHalf;
  auto* const cosine = reinterpret_cast<float*>(scratch);
  float* const sine = cosine + pairs;
  for (std::int64_t t = 0; t < pairs; ++t) {
    const double exponent = -2.0 * static_cast<double>(t) / static_cast<double>(rotary.rotary_dim);
    const double angle = static_cast<double>(position) * std::pow(rotary.base, exponent);
    cosine[t] = static_cast<float>(std::cos(angle));
    sine[t] = static_cast<float>(std::sin(angle));
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    float* const row = rows + h * stride;
    for (std::int64_t t = 0; t < pairs; ++t) {
      float& first = row[half ? t : 2 * t];
      float& second = row[half ? t + pairs : 2 * t + 1];
      const float a = first, c = second;
      first = a * cosine[t] - c * sine[t];
      second = c * cosine[t] + a * sine[t];
    }
  }
}

}  // namespace attnd
