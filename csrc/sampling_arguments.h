// What sample_grid accepts, checked once for every device. Each message names the argument and what came.
#pragma once

#include "arguments.h"
#include "sampling.h"

namespace disk_ops {

inline void check_grid(const at::Tensor& heatmap,  // [B, 1, H, W]
                       int64_t cell,
                       const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] bool
  TORCH_CHECK(heatmap.dim() == 4 && heatmap.size(1) == 1, "heatmap must have shape [B, 1, H, W], got ",
              heatmap.sizes());
  check_floating(heatmap, "heatmap");
  TORCH_CHECK(heatmap.size(2) == 0 || heatmap.size(3) <= std::numeric_limits<int32_t>::max() / heatmap.size(2),
              "heatmap must have fewer than 2^31 pixels per image, got ", heatmap.sizes());
  TORCH_CHECK(cell >= 1 && cell <= kMostCell, "cell must be from 1 to ", kMostCell, " pixels, got ", cell);
  if (mask) {
    TORCH_CHECK(mask->sizes() == heatmap.sizes(), "mask must have the shape of heatmap ", heatmap.sizes(), ", got ",
                mask->sizes());
    check_companion(*mask, "mask", heatmap, "heatmap", at::kBool);
  }
}

inline int64_t cells_along(int64_t pixels, int64_t cell) { return (pixels + cell - 1) / cell; }

// What log-probabilities are computed and returned in.
inline at::ScalarType logp_dtype(const at::Tensor& heatmap) {  // [B, 1, H, W]
  return heatmap.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// On the CPU for every device, so that reading it doesn't wait for a GPU.
inline uint64_t checked_seed(const at::Tensor& seed) {  // []
  TORCH_CHECK(seed.dim() == 0 && seed.scalar_type() == at::kLong && seed.device().is_cpu(),
              "seed must be an int64 tensor without dimensions on the CPU, got ", seed.scalar_type(), " of shape ",
              seed.sizes(), " on ", seed.device());
  return static_cast<uint64_t>(*seed.const_data_ptr<int64_t>());
}

inline void check_drawn(const at::Tensor& grad_logp,  // [B, h, w]
                        const at::Tensor& heatmap,    // [B, 1, H, W]
                        int64_t cell,
                        const at::Tensor& keypoints,   // [B, h, w, 2] int64
                        const at::Tensor& accepted) {  // [B, h, w] bool
  const int64_t shape[] = {heatmap.size(0), cells_along(heatmap.size(2), cell), cells_along(heatmap.size(3), cell), 2};
  const at::IntArrayRef grid(shape, 3);
  TORCH_CHECK(grad_logp.sizes() == grid, "grad_logp must have shape [B, h, w] = ", grid, ", got ", grad_logp.sizes());
  check_companion(grad_logp, "grad_logp", heatmap, "heatmap", logp_dtype(heatmap));
  TORCH_CHECK(keypoints.sizes() == at::IntArrayRef(shape), "keypoints must have shape [B, h, w, 2] = ",
              at::IntArrayRef(shape), ", got ", keypoints.sizes());
  check_companion(keypoints, "keypoints", heatmap, "heatmap", at::kLong);
  TORCH_CHECK(accepted.sizes() == grid, "accepted must have shape [B, h, w] = ", grid, ", got ", accepted.sizes());
  check_companion(accepted, "accepted", heatmap, "heatmap", at::kBool);
}

}  // namespace disk_ops
