// sample_grid and its gradient, run by the emulator, as csrc/cuda/sample_grid_cuda.cpp has them. Part of
// emulated_ops.cpp.
#pragma once

#include "../../csrc/cuda/sample_grid_kernel.cuh"
#include "../../csrc/cuda/sample_grid_launch.h"

namespace disk_ops {
namespace {

GridSamples sample_grid(const at::Tensor& heatmap,  // [B, 1, H, W]
                        int64_t cell,
                        const at::Tensor& seed,                   // [] int64
                        bool argmax,                              //
                        const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] bool
  check_grid(heatmap, cell, mask);
  return sample_grid_on_stream(heatmap, cell, checked_seed(seed), argmax, mask, nullptr);
}

at::Tensor sample_grid_backward(const at::Tensor& grad_logp,  // [B, h, w]
                                const at::Tensor& heatmap,    // [B, 1, H, W]
                                int64_t cell,
                                const at::Tensor& keypoints,              // [B, h, w, 2] int64
                                const at::Tensor& accepted,               // [B, h, w] bool
                                const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] bool
  check_grid(heatmap, cell, mask);
  check_drawn(grad_logp, heatmap, cell, keypoints, accepted);
  return sample_grid_backward_on_stream(grad_logp, heatmap, cell, keypoints, accepted, mask, nullptr);
}

}  // namespace
}  // namespace disk_ops
