// sample_grid and its gradient for CUDA tensors.
#include "../library.h"
#include "sample_grid_launch.h"
#include "stream.h"

namespace disk_ops {
namespace {

GridSamples sample_grid(const at::Tensor& heatmap,  // [B, 1, H, W]
                        int64_t cell,
                        const at::Tensor& seed,                   // [] int64 on the CPU
                        bool argmax,                              //
                        const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] bool
  check_grid(heatmap, cell, mask);
  const uint64_t key = checked_seed(seed);
  const DeviceStream stream(heatmap);
  return sample_grid_on_stream(heatmap, cell, key, argmax, mask, stream.get());
}

at::Tensor sample_grid_backward(const at::Tensor& grad_logp,  // [B, h, w]
                                const at::Tensor& heatmap,    // [B, 1, H, W]
                                int64_t cell,
                                const at::Tensor& keypoints,              // [B, h, w, 2] int64
                                const at::Tensor& accepted,               // [B, h, w] bool
                                const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] bool
  check_grid(heatmap, cell, mask);
  check_drawn(grad_logp, heatmap, cell, keypoints, accepted);
  const DeviceStream stream(heatmap);
  return sample_grid_backward_on_stream(grad_logp, heatmap, cell, keypoints, accepted, mask, stream.get());
}

}  // namespace

DISK_CUDA_KERNELS(m) {
  m.impl("sample_grid", &sample_grid);
  m.impl("_sample_grid_backward", &sample_grid_backward);
}

}  // namespace disk_ops
