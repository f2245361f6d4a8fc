#include "tests/bench/limits.h"

#include <algorithm>
#include <vector>

#include "core/peak.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/limits.cc"
#include "core/simd.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void SumFloats(const float* data, std::int64_t count, float* keep) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  constexpr std::int64_t kAhead = 2048;  // 8 KiB: further than the processor looks by itself
  for (std::int64_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    for (std::int64_t line = 0; line < 4 * lanes; line += 16) hwy::Prefetch(data + i + line + kAhead);
    s0 = hn::Add(s0, hn::LoadU(d, data + i));
    s1 = hn::Add(s1, hn::LoadU(d, data + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, data + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, data + i + 3 * lanes));
  }
  *keep = hn::GetLane(hn::SumOfLanes(d, s0 + s1 + s2 + s3));
}

}  // namespace HWY_NAMESPACE
}  // namespace attnd::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::bench {

HWY_EXPORT(SumFloats);

double ReadBandwidth(Executor& executor) {
  constexpr std::int64_t kFloats = std::int64_t{64} << 20;  // 256 MiB, all threads together
  static const std::vector<float> data(static_cast<std::size_t>(kFloats), 1.0F);
  std::vector<float> keep(static_cast<std::size_t>(executor.threads()) * 16);
  const std::int64_t part = kFloats / executor.threads();
  const double seconds = RunOnAll(executor, [&](int worker) {
    HWY_DYNAMIC_DISPATCH(SumFloats)(data.data() + worker * part, part, &keep[static_cast<std::size_t>(worker) * 16]);
  });
  return static_cast<double>(part * executor.threads()) * 4 / seconds;
}

}  // namespace attnd::bench
#endif
