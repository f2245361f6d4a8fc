// Vectors of float32 from each float type: Load(d, from), exact. Compiled once a target like the files that include it,
// so it has Highway's guard and no #pragma once.
// Thread rule: pure functions.
#if defined(ATTND_CORE_SIMD_LOAD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CORE_SIMD_LOAD_H_
#undef ATTND_CORE_SIMD_LOAD_H_
#else
#define ATTND_CORE_SIMD_LOAD_H_
#endif

#include <cstdint>

#include "core/simd.h"

HWY_BEFORE_NAMESPACE();
namespace attnd {
namespace HWY_NAMESPACE {

struct FromFloat32 {
  using Element = float;
  template <class D>
  static HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Load(D d, const float* from) {
    return hwy::HWY_NAMESPACE::LoadU(d, from);
  }
};
struct FromBfloat16 {
  using Element = std::uint16_t;
  template <class D>
  static HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Load(D d, const std::uint16_t* from) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<std::uint16_t, D> d16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), hn::LoadU(d16, from))));
  }
};
struct FromFloat16 {
  using Element = std::uint16_t;
  template <class D>
  static HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Load(D d, const std::uint16_t* from) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::BitCast(dh, hn::LoadU(d16, from)));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace attnd
HWY_AFTER_NAMESPACE();
#endif
