// The one place where a GPU and the emulator of tests/emulation differ.
//
// Kernels are launched by DISK_LAUNCH((kernel<T>), grid, block, shared_bytes, stream)(arguments...), with parentheses
// around a kernel whose template arguments have commas, and take dynamic shared memory by DISK_DYNAMIC_SHARED.
#pragma once

#include "runtime.h"

#if defined(DISK_EMULATED)
#define DISK_LAUNCH(kernel, grid, block, shared_bytes, stream) \
  (::cuda_emu::Launch<decltype(&kernel)>{&kernel, grid, block, shared_bytes, stream})
#define DISK_DYNAMIC_SHARED(T, name) T* const name = ::cuda_emu::dynamic_shared<T>()
#else
#include <cuda_runtime.h>
#define DISK_LAUNCH(kernel, grid, block, shared_bytes, stream) kernel<<<grid, block, shared_bytes, stream>>>
// One type-free symbol for all kernels: two `extern __shared__` of one name and different types would clash.
#define DISK_DYNAMIC_SHARED(T, name)                               \
  extern __shared__ __align__(16) unsigned char disk_shared_bytes[]; \
  T* const name = reinterpret_cast<T*>(disk_shared_bytes)
#endif
