// A heatmap as kernels see it: raw pointers, no torch.
#pragma once

#include <cstdint>

namespace disk_ops {

template <typename T>
struct HeatmapView {
  const T* heatmap;                           // [B, H, W], strided
  const bool* mask;                           // [B, H, W], strided, or null: all true
  int64_t batch_stride, y_stride, x_stride;   // in elements
  int64_t mask_batch_stride, mask_y_stride, mask_x_stride;
  int64_t batch;
  int height, width;  // height * width < 2^31
};

}  // namespace disk_ops
