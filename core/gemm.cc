#include "core/gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl_ukernel.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

namespace attnd {
namespace {

// One pass over k, even; longer inner dimensions are summed pass by pass, in order.
constexpr std::int64_t kDepthMax = 512;
// Columns of one call; wider results are cut, which changes no bytes.
constexpr std::int64_t kColumnsMax = 512;

// A generated kernel, or none where oneDNN has no kernel for the shape.
struct Kernel {
  dnnl::ukernel::brgemm brgemm;
  bool usable = false;
  std::size_t scratchpad_bytes = 0;
};

std::shared_ptr<const Kernel> Generate(const GemmShape& shape) {
  using Type = dnnl::memory::data_type;
  auto kernel = std::make_shared<Kernel>();
  try {
    const Type operands = shape.pairs ? Type::bf16 : Type::f32;
    kernel->brgemm = dnnl::ukernel::brgemm(shape.m, shape.n, shape.k, 1, shape.lda, shape.ldb, shape.ldc, operands,
                                           operands, Type::f32, /*allow_empty=*/true);
    if (kernel->brgemm.get(true) != nullptr) {
      kernel->brgemm.set_add_C(shape.add_c);
      kernel->brgemm.finalize();
      kernel->brgemm.generate();
      kernel->scratchpad_bytes = kernel->brgemm.get_scratchpad_size();
      kernel->usable = true;
    }
  } catch (const dnnl::error&) {
    kernel->usable = false;
  }
  return kernel;
}

struct ShapeHash {
  std::size_t operator()(const GemmShape& shape) const {
    std::uint64_t hash = 0x9e3779b97f4a7c15ULL;
    for (const std::int64_t part :
         {shape.m, shape.n, shape.k, shape.lda, shape.ldb, shape.ldc, shape.add_c + 2 * std::int64_t{shape.pairs}}) {
      hash = (hash ^ static_cast<std::uint64_t>(part)) * 0xff51afd7ed558ccdULL;
      hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash);
  }
};

// All kernels of the process. Generating one costs tens of microseconds, far more than running a small one.
class KernelCache {
 public:
  std::shared_ptr<const Kernel> Get(const GemmShape& shape) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = kernels_.find(shape); found != kernels_.end()) return found->second;
    }
    std::shared_ptr<const Kernel> kernel = Generate(shape);
    const std::lock_guard lock(mutex_);
    if (kernels_.emplace(shape, kernel).second) order_.push_back(shape);
    Trim();
    return kernel;
  }

  void SetMax(std::int64_t kernels) {
    const std::lock_guard lock(mutex_);
    max_ = static_cast<std::size_t>(std::max<std::int64_t>(1, kernels));
    Trim();
  }

  std::int64_t Size() {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(kernels_.size());
  }

 private:
  void Trim() {
    while (order_.size() > max_) {
      kernels_.erase(order_.front());
      order_.pop_front();
    }
  }

  std::mutex mutex_;
  std::size_t max_ = 1024;
  std::unordered_map<GemmShape, std::shared_ptr<const Kernel>, ShapeHash> kernels_;
  std::deque<GemmShape> order_;
};

KernelCache& Cache() {
  static auto* const cache = new KernelCache;  // outlives every thread that may still compute
  return *cache;
}

// The kernels a thread used last, so that the hot loop takes no lock.
const Kernel& Lookup(const GemmShape& shape) {
  struct Entry {
    GemmShape shape;
    std::shared_ptr<const Kernel> kernel;
  };
  thread_local std::array<Entry, 32> recent;
  Entry& entry = recent[ShapeHash{}(shape) % recent.size()];
  if (entry.kernel == nullptr || !(entry.shape == shape)) entry = {shape, Cache().Get(shape)};
  return *entry.kernel;
}

float FromBfloat16(std::uint16_t value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }

// Where oneDNN has no kernel: the same sum in the same order. A and B are float32 or, in pairs, bfloat16.
void PlainGemm(const GemmShape& shape, const void* a, const void* b, float* c) {
  const auto a_at = [&](std::int64_t row, std::int64_t depth) {
    const std::int64_t at = row * shape.lda + depth;
    return shape.pairs ? FromBfloat16(static_cast<const std::uint16_t*>(a)[at]) : static_cast<const float*>(a)[at];
  };
  const auto b_at = [&](std::int64_t depth, std::int64_t column) {
    if (!shape.pairs) return static_cast<const float*>(b)[depth * shape.ldb + column];
    return FromBfloat16(static_cast<const std::uint16_t*>(b)[2 * (depth / 2 * shape.ldb + column) + depth % 2]);
  };
  for (std::int64_t row = 0; row < shape.m; ++row) {
    float* const out = c + row * shape.ldc;
    if (!shape.add_c) std::fill_n(out, shape.n, 0.0F);
    for (std::int64_t depth = 0; depth < shape.k; ++depth) {
      const float factor = a_at(row, depth);
      for (std::int64_t column = 0; column < shape.n; ++column) {
        out[column] = __builtin_fmaf(factor, b_at(depth, column), out[column]);
      }
    }
  }
}

void RunOne(const GemmShape& shape, const void* a, const void* b, float* c) {
  const Kernel& kernel = Lookup(shape);
  if (!kernel.usable) {
    PlainGemm(shape, a, b, c);
    return;
  }
  static const std::vector<std::pair<dnnl::memory::dim, dnnl::memory::dim>> offsets = {{0, 0}};
  thread_local std::vector<std::byte> scratchpad;
  if (scratchpad.size() < kernel.scratchpad_bytes) scratchpad.resize(kernel.scratchpad_bytes);
  if (shape.pairs) kernel.brgemm.set_hw_context();  // AMX is told the shape of its tiles
  kernel.brgemm.execute(a, b, offsets, c, scratchpad.data());
  if (shape.pairs) dnnl::ukernel::brgemm::release_hw_context();
}

// Cut into parts that few kernels serve: run(part, depth, column).
template <class Run>
void Cut(const GemmShape& shape, Run run) {
  if (shape.m == 0) return;
  for (std::int64_t column = 0; column < shape.n; column += kColumnsMax) {
    GemmShape part = shape;
    part.n = std::min(kColumnsMax, shape.n - column);
    for (std::int64_t depth = 0; depth < shape.k; depth += kDepthMax) {
      part.k = std::min(kDepthMax, shape.k - depth);
      part.add_c = shape.add_c || depth > 0;
      run(part, depth, column);
    }
  }
}

}  // namespace

void Gemm(const GemmShape& shape, const float* a, const float* b, float* c) {
  Cut(shape, [&](const GemmShape& part, std::int64_t depth, std::int64_t column) {
    RunOne(part, a + depth, b + depth * shape.ldb + column, c + column);
  });
}

void GemmPairs(const GemmShape& shape, const std::byte* a, const float* b, float* c) {
  Cut(shape, [&](const GemmShape& part, std::int64_t depth, std::int64_t column) {
    RunOne(part, a + 2 * depth, b + depth / 2 * shape.ldb + column, c + column);
  });
}

bool HasPairProducts(unsigned isa) { return (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16; }
bool HasPairProducts() { return HasPairProducts(static_cast<unsigned>(dnnl_get_effective_cpu_isa())); }

void SetGemmCacheMax(std::int64_t kernels) { Cache().SetMax(kernels); }
std::int64_t GemmCacheSize() { return Cache().Size(); }

void LimitGemmToAvx2() { dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2); }

std::string GemmLibraryText() {
  const dnnl_version_t* const version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

}  // namespace attnd
