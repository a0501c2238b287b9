// Plain loops that the compiler vectorises, compiled for several instruction sets; the best one is chosen when the
// library is loaded. Where the toolchain can't choose at load time (no glibc, no GCC, other processors), once.
#pragma once

#include <cstdlib>  // defines __GLIBC__

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define DISK_CLONE_FOR_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DISK_CLONE_FOR_SIMD
#endif
