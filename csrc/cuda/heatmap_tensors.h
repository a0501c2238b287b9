// A HeatmapView of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "heatmap_view.h"

namespace disk_ops {

template <typename T>
HeatmapView<T> view_of(const at::Tensor& heatmap, const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] both
  HeatmapView<T> view{};
  view.heatmap = static_cast<const T*>(heatmap.const_data_ptr());
  view.batch_stride = heatmap.stride(0), view.y_stride = heatmap.stride(2), view.x_stride = heatmap.stride(3);
  if (mask) {
    view.mask = mask->const_data_ptr<bool>();
    view.mask_batch_stride = mask->stride(0), view.mask_y_stride = mask->stride(2);
    view.mask_x_stride = mask->stride(3);
  }
  view.batch = heatmap.size(0);
  view.height = static_cast<int>(heatmap.size(2)), view.width = static_cast<int>(heatmap.size(3));
  return view;
}

}  // namespace disk_ops
