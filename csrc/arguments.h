// What the ops accept, checked once for every device. Each message names the argument and what came.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace disk_ops {

inline void check_floating(const at::Tensor& tensor, const char* name) {
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16, name,
              " must be float16, bfloat16, float32 or float64, got ", dtype);
}

inline void check_companion(const at::Tensor& tensor, const char* name, const at::Tensor& main, const char* main_name,
                            at::ScalarType dtype) {
  TORCH_CHECK(tensor.scalar_type() == dtype, name, " must be of dtype ", dtype, ", got ", tensor.scalar_type());
  TORCH_CHECK(tensor.device() == main.device(), name, " must be on the device of ", main_name, " (", main.device(),
              "), got ", tensor.device());
}

inline void check_nms_topk(const at::Tensor& heatmap,  // [B, 1, H, W]
                           std::optional<int64_t> n, int64_t window_size, int64_t border,
                           const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] bool
  TORCH_CHECK(heatmap.dim() == 4 && heatmap.size(1) == 1, "heatmap must have shape [B, 1, H, W], got ",
              heatmap.sizes());
  check_floating(heatmap, "heatmap");
  TORCH_CHECK(heatmap.size(2) == 0 || heatmap.size(3) <= std::numeric_limits<int32_t>::max() / heatmap.size(2),
              "heatmap must have fewer than 2^31 pixels per image, got ", heatmap.sizes());
  TORCH_CHECK(!n || *n > 0, "n must be a positive integer or None, got ", *n);
  TORCH_CHECK(window_size > 0 && window_size % 2 == 1, "window_size must be an odd positive integer, got ",
              window_size);
  TORCH_CHECK(border >= 0, "border must be 0 or more pixels, got ", border);
  if (mask) {
    TORCH_CHECK(mask->sizes() == heatmap.sizes(), "mask must have the shape of heatmap ", heatmap.sizes(), ", got ",
                mask->sizes());
    check_companion(*mask, "mask", heatmap, "heatmap", at::kBool);
  }
}

inline void check_valid(const std::optional<at::Tensor>& valid,  // [B, N] bool
                        const char* name, const at::Tensor& desc, const char* desc_name) {  // [B, N, D]
  if (!valid) return;
  TORCH_CHECK(valid->sizes() == desc.sizes().slice(0, 2), name, " must have shape [B, N] = ", desc.sizes().slice(0, 2),
              " as ", desc_name, " has, got ", valid->sizes());
  check_companion(*valid, name, desc, desc_name, at::kBool);
}

inline void check_descriptors(const at::Tensor& desc1,    // [B, N, D]
                              const at::Tensor& desc2) {  // [B, M, D]
  TORCH_CHECK(desc1.dim() == 3, "desc1 must have shape [B, N, D], got ", desc1.sizes());
  TORCH_CHECK(desc2.dim() == 3, "desc2 must have shape [B, M, D], got ", desc2.sizes());
  check_floating(desc1, "desc1");
  check_companion(desc2, "desc2", desc1, "desc1", desc1.scalar_type());
  TORCH_CHECK(desc1.size(0) == desc2.size(0) && desc1.size(2) == desc2.size(2),
              "desc2 must have the batch size and dimension of desc1 ", desc1.sizes(), ", got ", desc2.sizes());
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  TORCH_CHECK(desc1.size(1) < kMost, "desc1 must have fewer than 2^31 rows, got ", desc1.sizes());
  TORCH_CHECK(desc2.size(1) < kMost, "desc2 must have fewer than 2^31 rows, got ", desc2.sizes());
}

inline void check_nearest_neighbors(const at::Tensor& desc1,  // [B, N, D]
                                    const at::Tensor& desc2,  // [B, M, D]
                                    const std::optional<at::Tensor>& valid1,    // [B, N] bool
                                    const std::optional<at::Tensor>& valid2) {  // [B, M] bool
  check_descriptors(desc1, desc2);
  check_valid(valid1, "valid1", desc1, "desc1");
  check_valid(valid2, "valid2", desc2, "desc2");
}

inline void check_describe(const at::Tensor& activation,   // [B, C, H, W]
                           const at::Tensor& weight,       // [D, C, k, k]
                           const at::Tensor& bias,         // [D]
                           const at::Tensor& keypoints) {  // [B, N, 2] int64
  TORCH_CHECK(activation.dim() == 4, "activation must have shape [B, C, H, W], got ", activation.sizes());
  check_floating(activation, "activation");
  TORCH_CHECK(weight.dim() == 4 && weight.size(1) == activation.size(1) && weight.size(2) == weight.size(3) &&
                  weight.size(2) % 2 == 1,
              "weight must have shape [D, C, k, k] with C = ", activation.size(1), " and k odd, got ",
              weight.sizes());
  check_companion(weight, "weight", activation, "activation", activation.scalar_type());
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == weight.size(0), "bias must have shape [D] with D = ", weight.size(0),
              ", got ", bias.sizes());
  check_companion(bias, "bias", activation, "activation", activation.scalar_type());
  TORCH_CHECK(keypoints.dim() == 3 && keypoints.size(2) == 2 && keypoints.size(0) == activation.size(0),
              "keypoints must have shape [B, N, 2] with B = ", activation.size(0), ", got ", keypoints.sizes());
  check_companion(keypoints, "keypoints", activation, "activation", at::kLong);
  TORCH_CHECK(keypoints.numel() == 0 || (activation.size(2) > 0 && activation.size(3) > 0),
              "keypoints must lie inside the image, which has no pixels: activation has shape ", activation.sizes());
}

// On the CPU, where looking costs nothing.
inline void check_inside(const at::Tensor& keypoints, int64_t height, int64_t width) {  // [B, N, 2], contiguous
  const int64_t* xy = keypoints.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < keypoints.numel() / 2; ++i)
    TORCH_CHECK_VALUE(0 <= xy[2 * i] && xy[2 * i] < width && 0 <= xy[2 * i + 1] && xy[2 * i + 1] < height,
                      "keypoints must lie inside the image of width ", width, " and height ", height, ", got (",
                      xy[2 * i], ", ", xy[2 * i + 1], ") as number ", i % keypoints.size(1), " of image ",
                      i / keypoints.size(1));
}

inline void check_describe_grad(const at::Tensor& grad,         // [B, N, D]
                                const at::Tensor& activation,   // [B, C, H, W]
                                const at::Tensor& weight,       // [D, C, k, k]
                                const at::Tensor& keypoints) {  // [B, N, 2]
  TORCH_CHECK(grad.dim() == 3 && grad.size(0) == keypoints.size(0) && grad.size(1) == keypoints.size(1) &&
                  grad.size(2) == weight.size(0),
              "grad must have shape [B, N, D] = [", keypoints.size(0), ", ", keypoints.size(1), ", ", weight.size(0),
              "], got ", grad.sizes());
  check_companion(grad, "grad", activation, "activation", activation.scalar_type());
}

}  // namespace disk_ops
