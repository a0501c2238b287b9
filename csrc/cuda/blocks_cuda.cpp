// block_norm, block_convolution, block_activation and block_patches for CUDA tensors. Their gradients have no kernels
// here: with gradients the network runs by PyTorch's own operations.
#include "../library.h"
#include "blocks_launch.h"
#include "stream.h"

namespace disk_ops {
namespace {

at::Tensor block_norm(const at::Tensor& x,                   // [B, C1, h, w]
                      const std::optional<at::Tensor>& skip,  // [B, C2, H, W]
                      std::string_view resample) {
  check_block(x, skip, std::nullopt, std::nullopt, resample);
  const DeviceStream stream(x);
  return block_norm_on_stream(BlockTensors(x, skip, std::nullopt, std::nullopt, resample), stream.get());
}

at::Tensor block_convolution(const at::Tensor& x,                    // [B, C1, h, w]
                             const at::Tensor& weight,               // [K, C1 + C2, 5, 5]
                             const at::Tensor& bias,                 // [K]
                             const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
                             const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
                             const std::optional<at::Tensor>& slope,  // [C1 + C2]
                             std::string_view resample) {
  check_block(x, skip, norm, slope, resample);
  check_block_weight(x, skip, weight, bias, 1);
  const DeviceStream stream(x);
  return block_convolution_on_stream(BlockTensors(x, skip, norm, slope, resample), weight, bias, stream.get());
}

at::Tensor block_activation(const at::Tensor& x,                    // [B, C1, h, w]
                            const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
                            const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
                            const std::optional<at::Tensor>& slope,  // [C1 + C2]
                            std::string_view resample) {
  check_block(x, skip, norm, slope, resample);
  const DeviceStream stream(x);
  return block_activation_on_stream(BlockTensors(x, skip, norm, slope, resample), stream.get());
}

at::Tensor block_patches(const at::Tensor& x,                    // [B, C1, h, w]
                         const at::Tensor& keypoints,            // [B, N, 2] int64 xy
                         const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
                         const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
                         const std::optional<at::Tensor>& slope,  // [C1 + C2]
                         std::string_view resample) {
  check_block(x, skip, norm, slope, resample);
  check_block_keypoints(x, keypoints);
  const DeviceStream stream(x);
  return block_patches_on_stream(BlockTensors(x, skip, norm, slope, resample), keypoints, stream.get());
}

}  // namespace

DISK_CUDA_KERNELS(m) {
  m.impl("block_norm", &block_norm);
  m.impl("block_convolution", &block_convolution);
  m.impl("block_activation", &block_activation);
  m.impl("block_patches", &block_patches);
}

}  // namespace disk_ops
