#include "core/pack.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/pack.cc"
#include "core/simd.h"
// After simd.h, once a target.
#include "core/simd_load.h"

HWY_BEFORE_NAMESPACE();
namespace attnd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;

template <class From>
void Widen(const typename From::Element* source, std::int64_t count, float* target) {
  const Floats d;
  const hn::CappedTag<float, 1> d1;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(From::Load(d, source + i), d, target + i);
  for (; i < count; ++i) hn::StoreU(From::Load(d1, source + i), d1, target + i);
}
void WidenBfloat16(const std::uint16_t* source, std::int64_t count, float* target) {
  Widen<FromBfloat16>(source, count, target);
}
void WidenFloat16(const std::uint16_t* source, std::int64_t count, float* target) {
  Widen<FromFloat16>(source, count, target);
}

// Float32 bits of vectors, to be narrowed: NaN made canonical.
template <class D>
HWY_INLINE hn::Vec<D> Canonical(D d, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
  return hn::IfThenElse(hn::IsNaN(value), hn::BitCast(d, hn::Set(du, 0x7FC00000U)), value);
}

template <class D>
HWY_INLINE bool StoreFloat32At(D d, const float* source, std::byte* target) {
  const auto value = Canonical(d, hn::LoadU(d, source));
  hn::StoreU(value, d, reinterpret_cast<float*>(target));
  return hn::AllTrue(d, hn::IsFinite(value));
}

template <class D>
HWY_INLINE bool StoreBfloat16At(D d, const float* source, std::byte* target) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto value = Canonical(d, hn::LoadU(d, source));
  const auto bits = hn::BitCast(du, value);
  // To nearest even: add 0x7FFF and the last bit that stays. NaN is already canonical and would only lose its
  // quietness.
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
  const auto kept = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), bits, rounded);
  const auto top = hn::ShiftRight<16>(kept);
  hn::StoreU(hn::TruncateTo(d16, top), d16, reinterpret_cast<std::uint16_t*>(target));
  return hn::AllTrue(d, hn::IsFinite(hn::BitCast(d, hn::ShiftLeft<16>(top))));
}

template <class D>
HWY_INLINE bool StoreFloat16At(D d, const float* source, std::byte* target) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> dh;
  const auto half = hn::DemoteTo(dh, Canonical(d, hn::LoadU(d, source)));
  hn::StoreU(hn::BitCast(d16, half), d16, reinterpret_cast<std::uint16_t*>(target));
  return hn::AllTrue(d, hn::IsFinite(hn::PromoteTo(d, half)));
}

bool Narrow(DType dtype, const float* source, std::int64_t count, std::byte* target) {
  const Floats d;
  const hn::CappedTag<float, 1> d1;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  bool finite = true;
  const auto all = [&](auto store_vector, auto store_one, std::int64_t bytes) {
    std::int64_t i = 0;
    for (; i + lanes <= count; i += lanes) finite = store_vector(source + i, target + i * bytes) && finite;
    for (; i < count; ++i) finite = store_one(source + i, target + i * bytes) && finite;
  };
  switch (dtype) {
    case DType::kFloat16:
      all([d](auto* s, auto* t) { return StoreFloat16At(d, s, t); },
          [d1](auto* s, auto* t) { return StoreFloat16At(d1, s, t); }, 2);
      break;
    case DType::kBFloat16:
      all([d](auto* s, auto* t) { return StoreBfloat16At(d, s, t); },
          [d1](auto* s, auto* t) { return StoreBfloat16At(d1, s, t); }, 2);
      break;
    default:
      all([d](auto* s, auto* t) { return StoreFloat32At(d, s, t); },
          [d1](auto* s, auto* t) { return StoreFloat32At(d1, s, t); }, 4);
  }
  return finite;
}

#if HWY_TARGET != HWY_SCALAR
// The first four elements of as many rows as there are blocks of four lanes, `step` elements apart.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const float* source, std::int64_t step) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return hn::LoadU(d, source);
  } else {
    const hn::Half<D> half;
    const auto halfway = static_cast<std::int64_t>(hn::MaxLanes(D())) / 8 * step;
    return hn::Combine(d, LoadBlocks(half, source + halfway, step), LoadBlocks(half, source, step));
  }
}

// As many rows as d has lanes x 4 columns, by two rounds of interleaving within the blocks.
template <class D>
HWY_INLINE void TransposeFour(D d, const float* source, std::int64_t stride, float* target,
                              std::int64_t target_stride) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<D> > d64;
  const auto r0 = LoadBlocks(d, source, 4 * stride), r1 = LoadBlocks(d, source + stride, 4 * stride);
  const auto r2 = LoadBlocks(d, source + 2 * stride, 4 * stride), r3 = LoadBlocks(d, source + 3 * stride, 4 * stride);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1)),
             high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3)),
             high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)), d, target);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)), d, target + target_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)), d, target + 2 * target_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23)), d, target + 3 * target_stride);
}
#endif

void TransposeFloats(const float* source, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* target,
                     std::int64_t target_stride) {
  std::int64_t done_rows = 0, done_columns = 0;  // the corner that went by blocks
#if HWY_TARGET != HWY_SCALAR
  const Floats d;
  const hn::CappedTag<float, 4> d4;
  done_rows = rows / 4 * 4;
  done_columns = columns / 4 * 4;
  // A block of rows stays in L1 while all its columns leave, each as whole cache lines.
  std::int64_t next = 0;
  const auto transpose_rows = [&](auto block) {
    const auto height = static_cast<std::int64_t>(hn::MaxLanes(block));
    for (; next + height <= done_rows; next += height) {
      for (std::int64_t column = 0; column < done_columns; column += 4) {
        TransposeFour(block, source + next * stride + column, stride, target + column * target_stride + next,
                      target_stride);
      }
    }
  };
  transpose_rows(d);
  transpose_rows(d4);
#endif
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = row < done_rows ? done_columns : 0; column < columns; ++column) {
      target[column * target_stride + row] = source[row * stride + column];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

HWY_EXPORT(WidenBfloat16);
HWY_EXPORT(WidenFloat16);
HWY_EXPORT(Narrow);
HWY_EXPORT(TransposeFloats);

void WidenToFloat(DType dtype, const std::byte* source, std::int64_t count, float* target) {
  if (dtype == DType::kFloat16) {
    HWY_DYNAMIC_DISPATCH(WidenFloat16)(reinterpret_cast<const std::uint16_t*>(source), count, target);
  } else if (dtype == DType::kBFloat16) {
    HWY_DYNAMIC_DISPATCH(WidenBfloat16)(reinterpret_cast<const std::uint16_t*>(source), count, target);
  } else if (count > 0) {
    std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(float));
  }
}

bool NarrowFromFloat(DType dtype, const float* source, std::int64_t count, std::byte* target) {
  return HWY_DYNAMIC_DISPATCH(Narrow)(dtype, source, count, target);
}

void PackTransposed(DType dtype, const std::byte* source, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                    float* target, std::int64_t target_stride) {
  if (dtype == DType::kFloat32) {
    HWY_DYNAMIC_DISPATCH(TransposeFloats)
    (reinterpret_cast<const float*>(source), stride, rows, columns, target, target_stride);
    return;
  }
  // Narrower rows are widened a few at a time and a strip of columns at a time, so that the strip stays in L1.
  constexpr std::int64_t kStripRows = 16, kStripColumns = 128;
  float strip[kStripRows * kStripColumns];
  for (std::int64_t row = 0; row < rows; row += kStripRows) {
    const std::int64_t strip_rows = rows - row < kStripRows ? rows - row : kStripRows;
    for (std::int64_t column = 0; column < columns; column += kStripColumns) {
      const std::int64_t width = columns - column < kStripColumns ? columns - column : kStripColumns;
      for (std::int64_t r = 0; r < strip_rows; ++r) {
        WidenToFloat(dtype, source + ((row + r) * stride + column) * ElementBytes(dtype), width,
                     strip + r * kStripColumns);
      }
      HWY_DYNAMIC_DISPATCH(TransposeFloats)
      (strip, kStripColumns, strip_rows, width, target + column * target_stride + row, target_stride);
    }
  }
}

}  // namespace attnd
#endif
