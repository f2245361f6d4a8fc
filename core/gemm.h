// The one room that sees oneDNN: C = A * B (or C += A * B) on small row-major matrices, by generated micro-kernels that
// are kept by shape. A row's bytes depend on its own A row, on B, k and add_c, never on m or on its neighbours. Wider
// registers are oneDNN's choice; narrower operands are ours, made here. Thread rule: every function may be called from
// any thread; the kernels themselves start no threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace attnd {

struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  // elements from one row to the next
  bool add_c = false;
  bool pairs = false;  // GemmPairs

  bool operator==(const GemmShape&) const = default;
};

// a: [m, k], b: [k, n], c: [m, n]. Nothing is read or written outside of these. m, n >= 0, k >= 1; long inner
// dimensions are cut at fixed places, so that few kernels serve all sizes.
void Gemm(const GemmShape& shape, const float* a, const float* b, float* c);

// The same for bfloat16 A [m, k] and B, with k even and sums in float32. B comes as pairs: [k / 2, n] of the elements
// (2t, j) and (2t + 1, j) side by side; ldb counts pairs. shape.pairs is true.
void GemmPairs(const GemmShape& shape, const std::byte* a, const float* b, float* c);

// Whether products of bfloat16 operands are made of pairs on a machine whose oneDNN may use `isa` (a dnnl_cpu_isa_t):
// from AVX-512 with BF16 on, AMX among them, where they are twice as fast or more and their sums no less exact. Float16
// has no such products before AMX-FP16 and is widened.
bool HasPairProducts(unsigned isa);
// The same of this machine, after LimitGemmToAvx2.
bool HasPairProducts();

// How many kernels are kept; the least recently generated go first.
void SetGemmCacheMax(std::int64_t kernels);
std::int64_t GemmCacheSize();

// Kernels of AVX2 only, whatever the machine has. Before the first Gemm.
void LimitGemmToAvx2();

// oneDNN's version and the widest instruction set it may use.
std::string GemmLibraryText();

}  // namespace attnd
