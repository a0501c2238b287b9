// The CUDA kernels and their launches as ops on CPU tensors, run by the emulator: disk_ops_emu::*.
#include <torch/library.h>

#include "../../csrc/cuda/nearest_neighbors_kernel.cuh"
#include "../../csrc/cuda/nearest_neighbors_launch.h"
#include "../../csrc/cuda/nms_topk_kernel.cuh"
#include "../../csrc/cuda/nms_topk_launch.h"

namespace disk_ops {
namespace {

MaximaOfBatch nms_topk(const at::Tensor& heatmap,  // [B, 1, H, W]
                       std::optional<int64_t> n, int64_t window_size, std::optional<double> score_threshold,
                       int64_t border, const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] bool
  check_nms_topk(heatmap, n, window_size, border, mask);
  return nms_topk_on_stream(heatmap, n, window_size, score_threshold, border, mask, nullptr);
}

NeighborsBothWays nearest_neighbors(const at::Tensor& desc1,                  // [B, N, D]
                                    const at::Tensor& desc2,                  // [B, M, D]
                                    const std::optional<at::Tensor>& valid1,  // [B, N] bool
                                    const std::optional<at::Tensor>& valid2,  // [B, M] bool
                                    int64_t tile) {                           // a NeighborTile
  check_nearest_neighbors(desc1, desc2, valid1, valid2);
  return nearest_neighbors_on_stream(desc1, desc2, valid1, valid2, static_cast<NeighborTile>(tile), nullptr);
}

void set_seed(int64_t seed) { cuda_emu::set_seed(static_cast<int>(seed)); }

}  // namespace

TORCH_LIBRARY(disk_ops_emu, m) {
  m.def(
      "nms_topk(Tensor heatmap, int? n, int window_size, float? score_threshold, int border, Tensor? mask)"
      " -> (Tensor, Tensor, Tensor)");
  m.def(
      "nearest_neighbors(Tensor desc1, Tensor desc2, Tensor? valid1, Tensor? valid2, int tile=0)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("set_seed(int seed) -> ()", &set_seed);
}

TORCH_LIBRARY_IMPL(disk_ops_emu, CPU, m) {
  m.impl("nms_topk", &nms_topk);
  m.impl("nearest_neighbors", &nearest_neighbors);
}

}  // namespace disk_ops
