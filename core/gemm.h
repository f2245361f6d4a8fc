// The one room that sees oneDNN: C = A * B (or C += A * B) on small float32 row-major matrices, by generated
// micro-kernels that are kept by shape. A row's bytes depend on its own A row, on B, k and add_c, never on m or on its
// neighbours. Thread rule: every function may be called from any thread; the kernels themselves start no threads.
#pragma once

#include <cstdint>
#include <string>

namespace attnd {

struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  // elements from one row to the next
  bool add_c = false;

  bool operator==(const GemmShape&) const = default;
};

// a: [m, k], b: [k, n], c: [m, n]. Nothing is read or written outside of these. m, n >= 0, k >= 1; long inner
// dimensions are cut at fixed places, so that few kernels serve all sizes.
void Gemm(const GemmShape& shape, const float* a, const float* b, float* c);

// How many kernels are kept; the least recently generated go first.
void SetGemmCacheMax(std::int64_t kernels);
std::int64_t GemmCacheSize();

// Kernels of AVX2 only, whatever the machine has. Before the first Gemm.
void LimitGemmToAvx2();

// oneDNN's version and the widest instruction set it may use.
std::string GemmLibraryText();

}  // namespace attnd
