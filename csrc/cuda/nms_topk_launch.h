// nms_topk on tensors: checks, allocation, launches. Shared by the CUDA glue and the emulated op of the tests, so that
// the tests see the real sizes of buffers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>

#include "../arguments.h"
#include "heatmap_tensors.h"
#include "nms_topk_kernel.h"

namespace disk_ops {

using MaximaOfBatch = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

inline void check_launch(cudaError_t error, const char* op) {
  TORCH_CHECK(error == cudaSuccess, op, " failed to launch: ", cudaGetErrorString(error));
}

inline MaximaOfBatch empty_maxima(const at::Tensor& heatmap, int64_t n) {  // [B, 1, H, W]
  const int64_t batch = heatmap.size(0);
  return {at::zeros({batch, n, 2}, heatmap.options().dtype(at::kLong)), at::zeros({batch, n}, heatmap.options()),
          at::zeros({batch, n}, heatmap.options().dtype(at::kBool))};
}

template <typename T>
MaximaOfBatch nms_topk_of_type(const at::Tensor& heatmap,  // [B, 1, H, W]
                               std::optional<int64_t> n, const MaximumRule& rule, int64_t capacity,
                               const std::optional<at::Tensor>& mask,  // [B, 1, H, W] bool
                               cudaStream_t stream) {
  using Key = MaximumKey<T>;
  const HeatmapView<T> view = view_of<T>(heatmap, mask);
  const auto bytes = [&](int64_t size) { return at::empty({size}, heatmap.options().dtype(at::kByte)); };
  const at::Tensor keys = bytes(view.batch * capacity * static_cast<int64_t>(sizeof(Key)));
  const at::Tensor counts = at::zeros({view.batch}, heatmap.options().dtype(at::kInt));
  const auto key_data = static_cast<Key*>(keys.mutable_data_ptr());
  {
    const at::Tensor scratch = bytes(find_maxima_scratch_bytes<T>(view.batch, view.height, view.width, rule));
    check_launch(launch_find_maxima<T>(view, rule, scratch.mutable_data_ptr(), key_data,
                                       counts.mutable_data_ptr<int>(), capacity, stream),
                 "nms_topk");
  }
  if (!n) n = at::max(counts).item<int>();  // waits for the GPU
  if (*n == 0) return empty_maxima(heatmap, 0);

  const int64_t slots = std::min(*n, capacity);
  const at::Tensor sorted = bytes(view.batch * padded_slots(slots) * static_cast<int64_t>(sizeof(Key)));
  const at::Tensor keypoints = at::empty({view.batch, *n, 2}, heatmap.options().dtype(at::kLong));
  const at::Tensor scores = at::empty({view.batch, *n}, heatmap.options());
  const at::Tensor valid = at::empty({view.batch, *n}, heatmap.options().dtype(at::kBool));
  check_launch(launch_best_maxima<T>(view, key_data, counts.const_data_ptr<int>(), capacity,
                                     static_cast<Key*>(sorted.mutable_data_ptr()), slots, *n,
                                     keypoints.mutable_data_ptr<int64_t>(),
                                     static_cast<T*>(scores.mutable_data_ptr()), valid.mutable_data_ptr<bool>(),
                                     stream),
               "nms_topk");
  return {keypoints, scores, valid};
}

// Arguments are checked, and the heatmap's device is current.
inline MaximaOfBatch nms_topk_on_stream(const at::Tensor& heatmap,  // [B, 1, H, W]
                                        std::optional<int64_t> n, int64_t window_size,
                                        std::optional<double> score_threshold, int64_t border,
                                        const std::optional<at::Tensor>& mask,  // [B, 1, H, W] bool
                                        cudaStream_t stream) {
  const int64_t batch = heatmap.size(0), height = heatmap.size(2), width = heatmap.size(3);
  constexpr int64_t kLongest = 1 << 30;  // leaves room for windows and tiles that overlap the edge
  TORCH_CHECK(height < kLongest && width < kLongest, "heatmap must be less than 2^30 pixels high and wide, got ",
              heatmap.sizes());
  constexpr int64_t kMostTiles = std::numeric_limits<int>::max();
  TORCH_CHECK(batch <= kMostTiles && batch * ((height + 31) / 32) * ((width + 31) / 32) <= kMostTiles,
              "heatmap must have less than 2^31 tiles of 32 x 32 pixels, got ", heatmap.sizes());
  if (batch == 0 || height == 0 || width == 0) return empty_maxima(heatmap, n.value_or(0));

  const int64_t radius = window_size / 2;
  MaximumRule rule{};
  rule.radius_x = static_cast<int>(std::min(radius, width - 1));
  rule.radius_y = static_cast<int>(std::min(radius, height - 1));
  rule.border = static_cast<int>(std::min(border, std::max(height, width)));
  rule.threshold = score_threshold.value_or(-std::numeric_limits<double>::infinity());
  // Maxima are more than a radius apart in x or in y, so no (radius + 1) x (radius + 1) pixels hold two of them.
  const int64_t capacity = ((height + rule.radius_y) / (rule.radius_y + 1)) *
                           ((width + rule.radius_x) / (rule.radius_x + 1));
  switch (heatmap.scalar_type()) {
    case at::kHalf:
      return nms_topk_of_type<Half>(heatmap, n, rule, capacity, mask, stream);
    case at::kBFloat16:
      return nms_topk_of_type<BFloat16>(heatmap, n, rule, capacity, mask, stream);
    case at::kDouble:
      return nms_topk_of_type<double>(heatmap, n, rule, capacity, mask, stream);
    default:
      return nms_topk_of_type<float>(heatmap, n, rule, capacity, mask, stream);
  }
}

}  // namespace disk_ops
