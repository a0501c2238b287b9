// Instruction sets of the CPU kernels: plain loops that the compiler vectorises are compiled for several
// of them and the best one is taken when the library is loaded.
#pragma once

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#define DISK_CLONE_FOR_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DISK_CLONE_FOR_SIMD
#endif
