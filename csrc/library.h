// Where ops are registered: in torch.ops.disk_ops, or, run by the emulator of tests/emulation on CPU tensors, in
// torch.ops.disk_ops_emu. So the tests run the glue of CUDA too, all but its stream.
#pragma once

#include <torch/library.h>

#if defined(DISK_EMULATED)
#define DISK_LIBRARY(m) TORCH_LIBRARY(disk_ops_emu, m)
#define DISK_CUDA_KERNELS(m) TORCH_LIBRARY_IMPL(disk_ops_emu, CPU, m)
#else
#define DISK_LIBRARY(m) TORCH_LIBRARY(disk_ops, m)
#define DISK_CUDA_KERNELS(m) TORCH_LIBRARY_IMPL(disk_ops, CUDA, m)
#endif
