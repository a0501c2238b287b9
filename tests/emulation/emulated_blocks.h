// The ops on blocks of the U-Net, run by the emulator, as csrc/cuda/blocks_cuda.cpp has them. Part of emulated_ops.cpp.
#pragma once

#include "../../csrc/cuda/blocks_kernel.cuh"
#include "../../csrc/cuda/blocks_launch.h"

namespace disk_ops {
namespace {

at::Tensor block_norm(const at::Tensor& x,                   // [B, C1, h, w]
                      const std::optional<at::Tensor>& skip,  // [B, C2, H, W]
                      std::string_view resample) {
  check_block(x, skip, std::nullopt, std::nullopt, resample);
  return block_norm_on_stream(BlockTensors(x, skip, std::nullopt, std::nullopt, resample), nullptr);
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
  return block_convolution_on_stream(BlockTensors(x, skip, norm, slope, resample), weight, bias, nullptr);
}

at::Tensor block_activation(const at::Tensor& x,                    // [B, C1, h, w]
                            const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
                            const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
                            const std::optional<at::Tensor>& slope,  // [C1 + C2]
                            std::string_view resample) {
  check_block(x, skip, norm, slope, resample);
  return block_activation_on_stream(BlockTensors(x, skip, norm, slope, resample), nullptr);
}

at::Tensor block_patches(const at::Tensor& x,                    // [B, C1, h, w]
                         const at::Tensor& keypoints,            // [B, N, 2] int64 xy
                         const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
                         const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
                         const std::optional<at::Tensor>& slope,  // [C1 + C2]
                         std::string_view resample) {
  check_block(x, skip, norm, slope, resample);
  check_block_keypoints(x, keypoints);
  return block_patches_on_stream(BlockTensors(x, skip, norm, slope, resample), keypoints, nullptr);
}

}  // namespace
}  // namespace disk_ops
