// cudaStream_t and cudaError_t for host code: of the CUDA runtime, or of the emulator of tests/emulation.
#pragma once

#if defined(DISK_EMULATED)
#include "cuda_emu.h"
#else
#include <cuda_runtime_api.h>
#endif
