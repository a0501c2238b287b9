// What the ops on blocks of the U-Net accept. Each message names the argument and what came.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "arguments.h"

namespace disk_ops {

// What the kernels of a device compute with.
enum class BlockTypes {
  kFloat,  // float32 on the CPU: gradients
  kHalf,   // any one of float32, float16 and bfloat16, with norms in float32
};

inline void check_float(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.device().is_cpu(), name,
              " must be float32 on the CPU for the compiled block ops, got ", tensor.scalar_type(), " on ",
              tensor.device());
}

inline void check_block_type(const at::Tensor& tensor, const char* name, const at::Tensor& x, BlockTypes types) {
  if (types == BlockTypes::kFloat) return check_float(tensor, name);
  const auto dtype = x.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16,
              "x must be float32, float16 or bfloat16, got ", dtype);
  check_companion(tensor, name, x, "x", dtype);
}

// Height and width after pooling or up-sampling.
inline std::pair<int64_t, int64_t> block_size(const at::Tensor& x,  // [B, C1, h, w]
                                              std::string_view resample) {
  const int64_t height = x.size(2), width = x.size(3);
  if (resample == "pool") return {height / 2, width / 2};
  if (resample == "up") return {2 * height, 2 * width};
  return {height, width};
}

inline int64_t block_channels(const at::Tensor& x, const std::optional<at::Tensor>& skip) {
  return x.size(1) + (skip ? skip->size(1) : 0);
}

inline void check_block(const at::Tensor& x,                    // [B, C1, h, w]
                        const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
                        const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
                        const std::optional<at::Tensor>& slope,  // [C1 + C2]
                        std::string_view resample, BlockTypes types = BlockTypes::kHalf) {
  TORCH_CHECK_VALUE(resample == "none" || resample == "pool" || resample == "up",
                    "resample must be 'none', 'pool' or 'up', got '", resample, "'");
  TORCH_CHECK(x.dim() == 4, "x must have shape [B, C, H, W], got ", x.sizes());
  check_block_type(x, "x", x, types);
  const auto [height, width] = block_size(x, resample);
  TORCH_CHECK(height > 0 && width > 0, "x must leave at least one pixel, got ", x.sizes(), " with resample '",
              resample, "'");
  if (skip) {
    check_block_type(*skip, "skip", x, types);
    TORCH_CHECK(skip->dim() == 4 && skip->size(0) == x.size(0) && skip->size(2) == height && skip->size(3) == width,
                "skip must have shape [", x.size(0), ", C, ", height, ", ", width, "], got ", skip->sizes());
  }
  const int64_t channels = block_channels(x, skip);
  if (norm) {
    check_companion(*norm, "norm", x, "x", at::kFloat);
    TORCH_CHECK(norm->dim() == 3 && norm->size(0) == 2 && norm->size(1) == x.size(0) && norm->size(2) == channels,
                "norm must have shape [2, ", x.size(0), ", ", channels, "], got ", norm->sizes());
  }
  if (slope) {
    check_block_type(*slope, "slope", x, types);
    TORCH_CHECK(slope->dim() == 1 && slope->size(0) == channels, "slope must have shape [", channels, "], got ",
                slope->sizes());
  }
}

inline void check_block_weight(const at::Tensor& x,                    // [B, C1, h, w]
                               const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
                               const at::Tensor& weight,               // [K, C1 + C2, 5, 5]
                               const at::Tensor& bias,                 // [K]
                               int64_t multiple) {  // of which there must be outputs, unless there is one
  const int64_t channels = block_channels(x, skip);
  check_block_type(weight, "weight", x, BlockTypes::kHalf);
  check_block_type(bias, "bias", x, BlockTypes::kHalf);
  const bool fits = weight.dim() == 4 && weight.size(1) == channels && weight.size(2) == 5 && weight.size(3) == 5;
  const bool whole = weight.dim() == 4 && (weight.size(0) == 1 || weight.size(0) % multiple == 0);
  TORCH_CHECK(fits && whole && weight.size(0) > 0, "weight must have shape [K, ", channels, ", 5, 5]",
              multiple == 1 ? "" : " with K = 1 or a multiple of ", multiple == 1 ? "" : std::to_string(multiple),
              ", got ", weight.sizes());
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == weight.size(0), "bias must have shape [", weight.size(0), "], got ",
              bias.sizes());
}

inline void check_block_keypoints(const at::Tensor& x,            // [B, C1, h, w]
                                  const at::Tensor& keypoints) {  // [B, N, 2] int64
  TORCH_CHECK(keypoints.dim() == 3 && keypoints.size(0) == x.size(0) && keypoints.size(2) == 2,
              "keypoints must have shape [B, N, 2] with B = ", x.size(0), ", got ", keypoints.sizes());
  check_companion(keypoints, "keypoints", x, "x", at::kLong);
}

}  // namespace disk_ops
