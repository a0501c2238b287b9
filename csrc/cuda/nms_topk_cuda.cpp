// nms_topk for CUDA tensors.
#include "../library.h"
#include "nms_topk_launch.h"
#include "stream.h"

namespace disk_ops {
namespace {

MaximaOfBatch nms_topk(const at::Tensor& heatmap,  // [B, 1, H, W]
                       std::optional<int64_t> n, int64_t window_size, std::optional<double> score_threshold,
                       int64_t border, const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] bool
  check_nms_topk(heatmap, n, window_size, border, mask);
  const DeviceStream stream(heatmap);
  return nms_topk_on_stream(heatmap, n, window_size, score_threshold, border, mask, stream.get());
}

}  // namespace

DISK_CUDA_KERNELS(m) { m.impl("nms_topk", &nms_topk); }

}  // namespace disk_ops
