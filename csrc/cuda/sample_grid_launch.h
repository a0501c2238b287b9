// sample_grid on tensors: allocation, launches. Shared by the CUDA glue and the emulated ops of the tests, so that the
// tests see the real sizes of buffers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>

#include "../sampling_arguments.h"
#include "element_type.h"
#include "heatmap_tensors.h"
#include "sample_grid_kernel.h"

namespace disk_ops {

using GridSamples = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

inline void check_sample_launch(cudaError_t error) {
  TORCH_CHECK(error == cudaSuccess, "sample_grid failed to launch: ", cudaGetErrorString(error));
}

inline void check_sample_blocks(const at::Tensor& heatmap, int64_t cell) {  // [B, 1, H, W]
  if (heatmap.numel() == 0) return;
  const int64_t blocks = sample_grid_blocks(static_cast<int>(heatmap.size(2)), static_cast<int>(heatmap.size(3)),
                                            static_cast<int>(cell));
  const int64_t most = std::numeric_limits<int>::max() / blocks;
  TORCH_CHECK(heatmap.size(0) <= most, "heatmap must have at most ", most, " images of that size for cells of ", cell,
              " pixels on CUDA, got ", heatmap.sizes());
}

// Arguments are checked, and the heatmap's device is current.
inline GridSamples sample_grid_on_stream(const at::Tensor& heatmap,  // [B, 1, H, W]
                                         int64_t cell, uint64_t seed, bool argmax,
                                         const std::optional<at::Tensor>& mask,  // [B, 1, H, W] bool
                                         cudaStream_t stream) {
  check_sample_blocks(heatmap, cell);
  const int64_t batch = heatmap.size(0), rows = cells_along(heatmap.size(2), cell);
  const int64_t columns = cells_along(heatmap.size(3), cell);
  const at::Tensor keypoints = at::empty({batch, rows, columns, 2}, heatmap.options().dtype(at::kLong));
  const at::Tensor accepted = at::empty({batch, rows, columns}, heatmap.options().dtype(at::kBool));
  const at::Tensor logp = at::empty({batch, rows, columns}, heatmap.options().dtype(logp_dtype(heatmap)));
  if (heatmap.numel() == 0) return {keypoints, accepted, logp};
  with_element_type(heatmap.scalar_type(), [&](auto element) {
    using T = decltype(element);
    check_sample_launch(launch_sample_grid<T>(
        view_of<T>(heatmap, mask), static_cast<int>(cell), seed, argmax, keypoints.mutable_data_ptr<int64_t>(),
        accepted.mutable_data_ptr<bool>(), logp.mutable_data_ptr<computing<T>>(), stream));
  });
  return {keypoints, accepted, logp};
}

inline at::Tensor sample_grid_backward_on_stream(const at::Tensor& grad_logp,  // [B, h, w]
                                                 const at::Tensor& heatmap,    // [B, 1, H, W]
                                                 int64_t cell,
                                                 const at::Tensor& keypoints,            // [B, h, w, 2] int64
                                                 const at::Tensor& accepted,             // [B, h, w] bool
                                                 const std::optional<at::Tensor>& mask,  // [B, 1, H, W] bool
                                                 cudaStream_t stream) {
  check_sample_blocks(heatmap, cell);
  const at::Tensor grad = at::empty(heatmap.sizes(), heatmap.options());
  if (heatmap.numel() == 0) return grad;
  const at::Tensor from = grad_logp.contiguous(), xy = keypoints.contiguous(), kept = accepted.contiguous();
  with_element_type(heatmap.scalar_type(), [&](auto element) {
    using T = decltype(element);
    check_sample_launch(launch_sample_grid_backward<T>(
        view_of<T>(heatmap, mask), static_cast<int>(cell), from.const_data_ptr<computing<T>>(),
        xy.const_data_ptr<int64_t>(), kept.const_data_ptr<bool>(), static_cast<T*>(grad.mutable_data_ptr()), stream));
  });
  return grad;
}

}  // namespace disk_ops
