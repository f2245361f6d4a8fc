#include "core/in_place.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/in_place.cc"
#include "core/simd.h"
// After simd.h, once a target.
#include "core/simd_load.h"

HWY_BEFORE_NAMESPACE();
namespace attnd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using One = hn::CappedTag<float, 1>;

// A strip of keys that stays in L1 while every block of rows meets it.
constexpr std::int64_t kStripKeys = 32;
// Keys and values are fetched this many rows before their turn: the work on a row is too long for the processor to look
// past it by itself.
constexpr std::int64_t kKeysAhead = 16;

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void SumFour(Floats d, const hn::Vec<Floats>* sums, float* out) {
  for (int r = 0; r < 4; ++r) out[r] = hn::GetLane(hn::SumOfLanes(d, sums[r]));
}
#else
using Block = hn::CappedTag<float, 4>;

// Blocks of four lanes added up.
template <class D>
HWY_INLINE hn::Vec<Block> SumOfBlocks(D /*d*/, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return SumOfBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// out[r] = sum of the lanes of sums[r], for four vectors at the price of less than two.
HWY_INLINE void SumFour(Floats d, const hn::Vec<Floats>* sums, float* out) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<Floats> > d64;
  const auto pair = [d](auto a, auto b) { return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)); };
  const auto low = hn::BitCast(d64, pair(sums[0], sums[1])), high = hn::BitCast(d64, pair(sums[2], sums[3]));
  const auto quads =
      hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, low, high)), hn::BitCast(d, hn::InterleaveUpper(d64, low, high)));
  hn::StoreU(SumOfBlocks(d, quads), Block(), out);
}
#endif

template <class From, int kRows>
HWY_INLINE void DotKey(const typename From::Element* key, std::int64_t ahead, std::int64_t width, const float* q,
                       float* scores, std::int64_t scores_stride) {
  const Floats d;
  const One d1;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<Floats> sums[4];
  for (int r = 0; r < 4; ++r) sums[r] = hn::Zero(d);
  std::int64_t t = 0;
  for (; t + lanes <= width; t += lanes) {
    hwy::Prefetch(key + t + ahead);
    const auto k = From::Load(d, key + t);
    for (int r = 0; r < kRows; ++r) sums[r] = hn::MulAdd(hn::LoadU(d, q + r * width + t), k, sums[r]);
  }
  float totals[4];
  SumFour(d, sums, totals);  // one row alone too: the same additions in the same order
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t rest = t; rest < width; ++rest) {
      totals[r] += q[r * width + rest] * hn::GetLane(From::Load(d1, key + rest));
    }
    scores[r * scores_stride] = totals[r];
  }
}

template <class From>
void Dot(const InPlaceRows& keys, const float* q, std::int64_t rows, float* scores, std::int64_t scores_stride) {
  const auto* const data = reinterpret_cast<const typename From::Element*>(keys.data);
  for (std::int64_t strip = 0; strip < keys.columns; strip += kStripKeys) {
    const std::int64_t end = std::min(keys.columns, strip + kStripKeys);
    std::int64_t row = 0;
    for (; row + 4 <= rows; row += 4) {
      for (std::int64_t j = strip; j < end; ++j) {
        DotKey<From, 4>(data + j * keys.stride, kKeysAhead * keys.stride, keys.width, q + row * keys.width,
                        scores + row * scores_stride + j, scores_stride);
      }
    }
    for (; row < rows; ++row) {
      for (std::int64_t j = strip; j < end; ++j) {
        DotKey<From, 1>(data + j * keys.stride, kKeysAhead * keys.stride, keys.width, q + row * keys.width,
                        scores + row * scores_stride + j, scores_stride);
      }
    }
  }
}

// kRows rows times kVectors vectors of columns, over a strip of keys.
template <class From, int kRows, int kVectors, class D>
HWY_INLINE void AddBlock(D d, const typename From::Element* values, std::int64_t stride, std::int64_t keys,
                         const float* p, std::int64_t p_stride, float* accumulator, std::int64_t accumulator_stride) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<D> sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::LoadU(d, accumulator + r * accumulator_stride + v * lanes);
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    hn::Vec<D> value[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      hwy::Prefetch(values + (j + kKeysAhead) * stride + v * lanes);
      value[v] = From::Load(d, values + j * stride + v * lanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const auto weight = hn::Set(d, p[r * p_stride + j]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(weight, value[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], d, accumulator + r * accumulator_stride + v * lanes);
  }
}

template <class From, int kRows>
HWY_INLINE void AddStrip(const typename From::Element* values, std::int64_t stride, std::int64_t width,
                         std::int64_t keys, const float* p, std::int64_t p_stride, float* accumulator) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t c = 0;
  for (; c + 4 * lanes <= width; c += 4 * lanes) {
    AddBlock<From, kRows, 4>(d, values + c, stride, keys, p, p_stride, accumulator + c, width);
  }
  for (; c + lanes <= width; c += lanes)
    AddBlock<From, kRows, 1>(d, values + c, stride, keys, p, p_stride, accumulator + c, width);
  for (; c < width; ++c) AddBlock<From, kRows, 1>(One(), values + c, stride, keys, p, p_stride, accumulator + c, width);
}

template <class From>
void AddWeighted(const InPlaceRows& values, const float* p, std::int64_t p_stride, std::int64_t rows,
                 float* accumulator) {
  // As many accumulators as registers hold: 32 of them from AVX-512 on, 16 before.
  constexpr int kRows = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
  const auto* const data = reinterpret_cast<const typename From::Element*>(values.data);
  for (std::int64_t strip = 0; strip < values.columns; strip += kStripKeys) {
    const std::int64_t keys = std::min(kStripKeys, values.columns - strip);
    const auto* const from = data + strip * values.stride;
    std::int64_t row = 0;
    for (; row + kRows <= rows; row += kRows) {
      AddStrip<From, kRows>(from, values.stride, values.width, keys, p + row * p_stride + strip, p_stride,
                            accumulator + row * values.width);
    }
    for (; row < rows; ++row) {
      AddStrip<From, 1>(from, values.stride, values.width, keys, p + row * p_stride + strip, p_stride,
                        accumulator + row * values.width);
    }
  }
}

void DotAny(const InPlaceRows& keys, const float* q, std::int64_t rows, float* scores, std::int64_t scores_stride) {
  switch (keys.dtype) {
    case DType::kFloat16: return Dot<FromFloat16>(keys, q, rows, scores, scores_stride);
    case DType::kBFloat16: return Dot<FromBfloat16>(keys, q, rows, scores, scores_stride);
    default: return Dot<FromFloat32>(keys, q, rows, scores, scores_stride);
  }
}

void AddWeightedAny(const InPlaceRows& values, const float* p, std::int64_t p_stride, std::int64_t rows,
                    float* accumulator) {
  switch (values.dtype) {
    case DType::kFloat16: return AddWeighted<FromFloat16>(values, p, p_stride, rows, accumulator);
    case DType::kBFloat16: return AddWeighted<FromBfloat16>(values, p, p_stride, rows, accumulator);
    default: return AddWeighted<FromFloat32>(values, p, p_stride, rows, accumulator);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

HWY_EXPORT(DotAny);
HWY_EXPORT(AddWeightedAny);

void DotInPlace(const InPlaceRows& keys, const float* q, std::int64_t rows, float* scores, std::int64_t scores_stride) {
  HWY_DYNAMIC_DISPATCH(DotAny)(keys, q, rows, scores, scores_stride);
}

void AddWeightedInPlace(const InPlaceRows& values, const float* p, std::int64_t p_stride, std::int64_t rows,
                        float* accumulator) {
  HWY_DYNAMIC_DISPATCH(AddWeightedAny)(values, p, p_stride, rows, accumulator);
}

}  // namespace attnd
#endif
