// Compiles the header DISK_KERNELS once for each instruction set, in a namespace of its own, on top of the vectors and
// register tiles of vector_simd.h and product_simd.h. A source defines DISK_KERNELS, includes this, and calls
// choose_kernel<real>(), which gives what `kernel<real>()` of that header gives for the best set of this processor.
// DISK_KERNELS may use anything that was declared before in disk_ops; hence no include guard here either.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace disk_ops {
namespace {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISK_RUNTIME_SIMD
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#define DISK_VECTOR_BYTES 32
#define DISK_TILE_ROWS 6
#include "vector_simd.h"
#include "product_simd.h"
#include DISK_KERNELS
#undef DISK_VECTOR_BYTES
#undef DISK_TILE_ROWS
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,fma")
namespace avx512 {
#define DISK_VECTOR_BYTES 64
#define DISK_TILE_ROWS 12
#include "vector_simd.h"
#include "product_simd.h"
#include DISK_KERNELS
#undef DISK_VECTOR_BYTES
#undef DISK_TILE_ROWS
}  // namespace avx512
#pragma GCC pop_options
#endif

namespace plain {
#define DISK_VECTOR_BYTES 16
#define DISK_TILE_ROWS 6
#include "vector_simd.h"
#include "product_simd.h"
#include DISK_KERNELS
#undef DISK_VECTOR_BYTES
#undef DISK_TILE_ROWS
}  // namespace plain

#if defined(DISK_RUNTIME_SIMD)
inline bool has_f16c() {  // older compilers can't be asked for it by name
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

template <typename real>
auto choose_kernel() -> decltype(plain::kernel<real>()) {
#if defined(DISK_RUNTIME_SIMD)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw"))
    return avx512::kernel<real>();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) return avx2::kernel<real>();
#endif
  return plain::kernel<real>();
}

}  // namespace
}  // namespace disk_ops
