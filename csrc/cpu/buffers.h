// Memory for the large tensors of the CPU kernels, kept for the next call when a tensor is freed.
//
// The C library gives memory of this size back to the system at once, and writing to fresh pages takes as long as the
// arithmetic of a cheap layer. What is kept is bounded, is released on request, and serves any thread: each buffer
// belongs to one tensor at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include "kept_memory.h"

namespace disk_ops {

// An uninitialised tensor [B, C, H, W] on the CPU, channels last.
at::Tensor empty_channels_last(at::IntArrayRef size, at::ScalarType type);

}  // namespace disk_ops
