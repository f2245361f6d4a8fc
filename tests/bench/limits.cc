#include "tests/bench/limits.h"

#include <algorithm>
#include <vector>

#include "absl/time/clock.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/limits.cc"
#include "core/simd.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve independent chains cover the latency of two multiply-add units. They start from different values, so that none
// can be computed from another. Returns the FLOPs done.
double MultiplyAdds(std::int64_t rounds, float* keep) {
  const hn::ScalableTag<float> d;
  constexpr int kChains = 12;
  hn::Vec<decltype(d)> chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = hn::Set(d, keep[c] + static_cast<float>(c));
  const auto x = hn::Set(d, 0.999999F), y = hn::Set(d, 1e-7F);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) chain[c] = hn::MulAdd(chain[c], x, y);
  }
  for (int c = 0; c < kChains; ++c) keep[c] = hn::GetLane(hn::SumOfLanes(d, chain[c]));
  return static_cast<double>(rounds) * kChains * 2 * static_cast<double>(hn::Lanes(d));
}

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

HWY_EXPORT(MultiplyAdds);
HWY_EXPORT(SumFloats);

double RunOnAll(Executor& executor, const std::function<void(int)>& fn) {
  std::mutex mutex;
  std::condition_variable changed;
  bool finished = false;
  std::atomic<int> arrived{0};
  const int threads = executor.threads();
  Phase phase;
  phase.units = threads;
  // Each unit waits for the others, so that every thread gets one.
  phase.run = [&](std::int64_t unit, WorkerContext&) {
    ++arrived;
    while (arrived < threads) std::this_thread::yield();
    fn(static_cast<int>(unit));
    return nullptr;
  };
  const absl::Time start = absl::Now();
  executor.Submit(
      std::make_shared<Job>(std::vector<Phase>{phase}, std::make_shared<CancelToken>(), [&](const JobReport&) {
        const std::lock_guard lock(mutex);
        finished = true;
        changed.notify_one();
      }));
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return finished; });
  return absl::ToDoubleSeconds(absl::Now() - start);
}

double FmaPeak(Executor& executor) {
  std::vector<double> flops(static_cast<std::size_t>(executor.threads()) * 16);
  std::vector<float> keep(static_cast<std::size_t>(executor.threads()) * 16);
  const double seconds = RunOnAll(executor, [&](int worker) {
    flops[static_cast<std::size_t>(worker) * 16] =
        HWY_DYNAMIC_DISPATCH(MultiplyAdds)(3'000'000, &keep[static_cast<std::size_t>(worker) * 16]);
  });
  double total = 0;
  for (const double part : flops) total += part;
  return total / seconds;
}

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
