#include "core/peak.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/peak.cc"
#include "core/clock.h"
#include "core/simd.h"

HWY_BEFORE_NAMESPACE();
namespace attnd {
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
  for (int c = 0; c < kChains; ++c)
    keep[c] = hn::GetLane(hn::SumOfLanes(d, chain[c])) / static_cast<float>(hn::Lanes(d));
  return static_cast<double>(rounds) * kChains * 2 * static_cast<double>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace attnd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

HWY_EXPORT(MultiplyAdds);

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
  const absl::Time start = Now();
  executor.Submit(
      std::make_shared<Job>(std::vector<Phase>{phase}, std::make_shared<CancelToken>(), [&](const JobReport&) {
        const std::lock_guard lock(mutex);
        finished = true;
        changed.notify_one();
      }));
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return finished; });
  return absl::ToDoubleSeconds(Now() - start);
}

Peak FmaPeak(Executor& executor) {
  constexpr std::int64_t kRounds = 20'000;
  constexpr absl::Duration kSpent = absl::Milliseconds(6);  // of each thread's time, in however slow a build
  constexpr std::size_t kApart = 16;                        // a cache line for each thread
  std::vector<double> rates(static_cast<std::size_t>(executor.threads()) * kApart);
  std::vector<float> keep(rates.size());
  std::vector<double> flops(rates.size());
  const double seconds = RunOnAll(executor, [&](int worker) {
    const std::size_t own = static_cast<std::size_t>(worker) * kApart;
    const absl::Duration start = ThreadCpuTime();
    absl::Duration spent;
    do {
      flops[own] += HWY_DYNAMIC_DISPATCH(MultiplyAdds)(kRounds, &keep[own]);
      spent = ThreadCpuTime() - start;
    } while (spent < kSpent);
    rates[own] = flops[own] / absl::ToDoubleSeconds(spent);
  });
  Peak peak;
  for (const double each : flops) peak.by_wall_clock += each / seconds;
  for (const double rate : rates) peak.by_cpu_time += rate;
  return peak;
}

}  // namespace attnd
#endif
