#include "core/softmax.h"

#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/softmax.cc"
#include "core/simd.h"

HWY_BEFORE_NAMESPACE();
namespace attnd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using One = hn::CappedTag<float, 1>;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The constants of one exponential: e^(difference) = 2^(difference * factor).
template <class D>
struct Exp2 {
  Exp2(D d, float exp2_factor) : factor(hn::Set(d, exp2_factor)), floor(hn::Set(d, -126.0F / exp2_factor)) {}

  // 2^(difference * factor) for difference <= 0: exactly 1 at 0, exactly 0 where the result would be subnormal, NaN for
  // NaN. Relative error below 3 * 2^-24: 2^n is made in the exponent field, 2^f for |f| <= 1/2 by a polynomial fitted
  // to the relative error with value 1 at 0.
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> difference) const {
    const hn::RebindToSigned<D> di;
    // Adding 1.5 * 2^23 + 127 leaves round(difference * factor) + 127, an exponent field, in the low bits of the sum.
    const auto magic = hn::Set(d, 12582912.0F + 127.0F);
    const auto shifted = hn::MulAdd(difference, factor, magic);
    const auto f = hn::MulSub(difference, factor, hn::Sub(shifted, magic));
    const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
    auto p = hn::Set(d, 0.0013264736626297235F);
    p = hn::MulAdd(p, f, hn::Set(d, 0.009671516716480255F));
    p = hn::MulAdd(p, f, hn::Set(d, 0.05550733581185341F));
    p = hn::MulAdd(p, f, hn::Set(d, 0.24022242426872253F));
    p = hn::MulAdd(p, f, hn::Set(d, 0.6931470036506653F));
    p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
    return hn::IfThenZeroElse(hn::Lt(difference, floor), hn::Mul(p, power));
  }

  hn::Vec<D> factor, floor;
};

void ExcludeMasked(float* HWY_RESTRICT scores, const std::uint8_t* HWY_RESTRICT mask, std::int64_t columns) {
  const Floats d;
  const hn::Rebind<std::uint8_t, Floats> d8;
  const hn::RebindToUnsigned<Floats> du;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + lanes <= columns; j += lanes) {
    const auto wide = hn::PromoteTo(du, hn::LoadU(d8, mask + j));
    const auto excluded = hn::RebindMask(d, hn::Eq(wide, hn::Zero(du)));
    hn::StoreU(hn::IfThenElse(excluded, hn::Set(d, kMinusInfinity), hn::LoadU(d, scores + j)), d, scores + j);
  }
  for (; j < columns; ++j) {
    if (mask[j] == 0) scores[j] = kMinusInfinity;
  }
}

void ScaleRow(float* scores, float scale, std::int64_t columns) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + lanes <= columns; j += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, scores + j), hn::Set(d, scale)), d, scores + j);
  }
  for (; j < columns; ++j) scores[j] *= scale;
}

// Relative error below 2^-21; NaN stays NaN. Near 0 an odd polynomial fitted to the relative error, elsewhere
// (1 - e^-2|x|) / (1 + e^-2|x|).
template <class D>
HWY_INLINE hn::Vec<D> TanhOf(D d, const Exp2<D>& exp_twice, hn::Vec<D> x) {
  const auto size = hn::Abs(x), square = hn::Mul(x, x), one = hn::Set(d, 1.0F);
  auto p = hn::Set(d, -0.0056038605980575085F);
  p = hn::MulAdd(p, square, hn::Set(d, 0.02055167220532894F));
  p = hn::MulAdd(p, square, hn::Set(d, -0.0537140928208828F));
  p = hn::MulAdd(p, square, hn::Set(d, 0.13331152498722076F));
  p = hn::MulAdd(p, square, hn::Set(d, -0.33333271741867065F));
  const auto near_zero = hn::MulAdd(hn::Mul(p, square), x, x);
  const auto e = exp_twice(d, hn::Neg(size));
  const auto far = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  return hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.625F)), near_zero, far);
}

template <class D>
HWY_INLINE hn::Vec<D> SoftCapOf(D d, const Exp2<D>& exp_twice, hn::Vec<D> score, float cap) {
  // A reciprocal would be another rounding of small scores, and may not exist for a tiny cap.
  const auto x = hn::Div(score, hn::Set(d, cap));
  const auto capped = hn::Mul(hn::Set(d, cap), TanhOf(d, exp_twice, x));
  // So near 0 tanh(x) is x, and x may have been flushed to 0 by a huge cap.
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, 0x1p-13F)), score, capped);
}

void SoftCapRow(float* scores, float cap, std::int64_t columns) {
  constexpr float kTwiceLog2E = 2.0F * 1.44269504F;
  const Floats d;
  const One d1;
  const Exp2<Floats> exp_twice(d, kTwiceLog2E);
  const Exp2<One> exp_twice1(d1, kTwiceLog2E);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + lanes <= columns; j += lanes) {
    hn::StoreU(SoftCapOf(d, exp_twice, hn::LoadU(d, scores + j), cap), d, scores + j);
  }
  for (; j < columns; ++j) scores[j] = hn::GetLane(SoftCapOf(d1, exp_twice1, hn::Set(d1, scores[j]), cap));
}

void AddDistanceBias(float* scores, float slope, float position, std::int64_t columns) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto vector_slope = hn::Set(d, slope);
  std::int64_t j = 0;
  for (; j + lanes <= columns; j += lanes) {
    const auto distance = hn::Abs(hn::Sub(hn::Set(d, position), hn::Iota(d, static_cast<float>(j))));
    hn::StoreU(hn::NegMulAdd(vector_slope, distance, hn::LoadU(d, scores + j)), d, scores + j);
  }
  const One d1;
  for (; j < columns; ++j) {
    const auto distance = hn::Set(d1, std::abs(position - static_cast<float>(j)));
    scores[j] = hn::GetLane(hn::NegMulAdd(hn::Set(d1, slope), distance, hn::Set(d1, scores[j])));
  }
}

void AddBias(float* HWY_RESTRICT scores, const float* HWY_RESTRICT bias, std::int64_t columns) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + lanes <= columns; j += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, scores + j), hn::LoadU(d, bias + j)), d, scores + j);
  }
  for (; j < columns; ++j) scores[j] += bias[j];
}

void ExcludeByBias(float* HWY_RESTRICT scores, const float* HWY_RESTRICT bias, std::int64_t columns) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto minus_infinity = hn::Set(d, kMinusInfinity);
  std::int64_t j = 0;
  for (; j + lanes <= columns; j += lanes) {
    const auto excluded = hn::Eq(hn::LoadU(d, bias + j), minus_infinity);
    hn::StoreU(hn::IfThenElse(excluded, minus_infinity, hn::LoadU(d, scores + j)), d, scores + j);
  }
  for (; j < columns; ++j) {
    if (bias[j] == kMinusInfinity) scores[j] = kMinusInfinity;
  }
}

// The largest of a row and `start`. A NaN may or may not be seen: exp brings it out anyway.
HWY_INLINE float RowMaximum(const float* row, std::int64_t columns, float start) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto m0 = hn::Set(d, kMinusInfinity), m1 = m0;
  for (std::int64_t j = 0; j < columns; j += 2 * lanes) {
    m0 = hn::Max(hn::LoadU(d, row + j), m0);
    m1 = hn::Max(hn::LoadU(d, row + j + lanes), m1);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(m0, m1)));
  return largest > start ? largest : start;
}

// row <- e^(row - m); the sum. Which partial sum an entry joins depends on its column alone.
HWY_INLINE float RowExponentials(float* row, std::int64_t columns, float m, float exp2_factor) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto vm = hn::Set(d, m);
  const Exp2<Floats> exp(d, exp2_factor);
  auto s0 = hn::Zero(d), s1 = s0;
  for (std::int64_t j = 0; j < columns; j += 2 * lanes) {
    const auto p0 = exp(d, hn::Sub(hn::LoadU(d, row + j), vm));
    const auto p1 = exp(d, hn::Sub(hn::LoadU(d, row + j + lanes), vm));
    hn::StoreU(p0, d, row + j);
    hn::StoreU(p1, d, row + j + lanes);
    s0 = hn::Add(s0, p0);
    s1 = hn::Add(s1, p1);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
}

void SoftmaxStep(const SoftmaxTile& tile, float* m, float* l, float* alpha) {
  const One d1;
  const Exp2<One> exp1(d1, tile.exp2_factor);
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    float* const row = tile.scores + i * tile.stride;
    const float largest = RowMaximum(row, tile.columns, m[i]);
    // While nothing was allowed, differences are taken from 0, so that e^(-inf) is 0 and not e^(-inf + inf).
    const float base = largest == kMinusInfinity ? 0.0F : largest;
    alpha[i] = hn::GetLane(exp1(d1, hn::Set(d1, m[i] - base)));
    l[i] = l[i] * alpha[i] + RowExponentials(row, tile.columns, base, tile.exp2_factor);
    m[i] = largest;
  }
}

void RescaleRows(float* accumulator, std::int64_t stride, std::int64_t rows, std::int64_t columns, const float* alpha) {
  for (std::int64_t i = 0; i < rows; ++i) {
    if (alpha[i] != 1.0F) ScaleRow(accumulator + i * stride, alpha[i], columns);
  }
}

bool DivideRow(float* values, float divisor, std::int64_t columns) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  bool finite = true;
  std::int64_t j = 0;
  for (; j + lanes <= columns; j += lanes) {
    const auto quotient = hn::Div(hn::LoadU(d, values + j), hn::Set(d, divisor));
    finite = finite && hn::AllTrue(d, hn::IsFinite(quotient));
    hn::StoreU(quotient, d, values + j);
  }
  for (; j < columns; ++j) {
    values[j] /= divisor;
    finite = finite && std::isfinite(values[j]);
  }
  return finite;
}

void WeightsRow(float* scores, float m, float l, float exp2_factor, std::int64_t columns) {
  const Floats d;
  const One d1;
  const Exp2<Floats> exp(d, exp2_factor);
  const Exp2<One> exp1(d1, exp2_factor);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + lanes <= columns; j += lanes) {
    const auto difference = hn::Sub(hn::LoadU(d, scores + j), hn::Set(d, m));
    hn::StoreU(hn::Div(exp(d, difference), hn::Set(d, l)), d, scores + j);
  }
  for (; j < columns; ++j) scores[j] = hn::GetLane(exp1(d1, hn::Set(d1, scores[j] - m))) / l;
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace attnd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

// Eight bytes at a time; glibc's memchr would have to run twice.
MaskSummary SummarizeMask(const std::uint8_t* mask, std::int64_t columns) {
  std::uint64_t all = 0x0101010101010101U, any = 0;
  std::int64_t j = 0;
  for (; j + 8 <= columns; j += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, mask + j, sizeof(eight));
    all &= eight;
    any |= eight;
  }
  bool all_true = all == 0x0101010101010101U, any_true = any != 0;
  for (; j < columns; ++j) {
    all_true = all_true && mask[j] != 0;
    any_true = any_true || mask[j] != 0;
  }
  return all_true ? MaskSummary::kAllTrue : any_true ? MaskSummary::kMixed : MaskSummary::kAllFalse;
}

HWY_EXPORT(ExcludeMasked);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(SoftCapRow);
HWY_EXPORT(AddDistanceBias);
HWY_EXPORT(AddBias);
HWY_EXPORT(ExcludeByBias);
HWY_EXPORT(SoftmaxStep);
HWY_EXPORT(RescaleRows);
HWY_EXPORT(DivideRow);
HWY_EXPORT(WeightsRow);
HWY_EXPORT(TargetName);

void ExcludeMasked(float* scores, const std::uint8_t* mask, std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(ExcludeMasked)(scores, mask, columns);
}
void ScaleRow(float* scores, float scale, std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(ScaleRow)(scores, scale, columns);
}
void SoftCapRow(float* scores, float cap, std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(SoftCapRow)(scores, cap, columns);
}
void AddDistanceBias(float* scores, float slope, float position, std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(AddDistanceBias)(scores, slope, position, columns);
}
void AddBias(float* scores, const float* bias, std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(AddBias)(scores, bias, columns);
}
void ExcludeByBias(float* scores, const float* bias, std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(ExcludeByBias)(scores, bias, columns);
}
void SoftmaxStep(const SoftmaxTile& tile, float* m, float* l, float* alpha) {
  HWY_DYNAMIC_DISPATCH(SoftmaxStep)(tile, m, l, alpha);
}
void RescaleRows(float* accumulator, std::int64_t stride, std::int64_t rows, std::int64_t columns, const float* alpha) {
  HWY_DYNAMIC_DISPATCH(RescaleRows)(accumulator, stride, rows, columns, alpha);
}
bool DivideRow(float* values, float divisor, std::int64_t columns) {
  return HWY_DYNAMIC_DISPATCH(DivideRow)(values, divisor, columns);
}
void WeightsRow(float* scores, float m, float l, float exp2_factor, std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(WeightsRow)(scores, m, l, exp2_factor, columns);
}
void LimitSimdToAvx2() {
  // A target is wider the lower its bit.
  hwy::DisableTargets(hwy::SupportedTargets() & (HWY_AVX2 - 1));
}
const char* SimdTargetName() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace attnd
#endif
