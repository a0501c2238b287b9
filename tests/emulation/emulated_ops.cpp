// The CUDA side as ops on CPU tensors, run by the emulator: torch.ops.disk_ops_emu.* have the schemas and the glue of
// torch.ops.disk_ops.* (csrc/library.h). Three ops more choose what those choose themselves.
#include "../../csrc/cuda/blocks_kernel.cu"
#include "../../csrc/cuda/describe_kernel.cu"
#include "../../csrc/cuda/distance_matrix_kernel.cu"
#include "../../csrc/cuda/match_kernel.cu"
#include "../../csrc/cuda/nearest_neighbors_kernel.cu"
#include "../../csrc/cuda/nms_topk_kernel.cu"
#include "../../csrc/cuda/sample_grid_kernel.cu"

#include "../../csrc/cuda/blocks_cuda.cpp"
#include "../../csrc/cuda/describe_cuda.cpp"
#include "../../csrc/cuda/distance_matrix_cuda.cpp"
#include "../../csrc/cuda/match_cuda.cpp"
#include "../../csrc/cuda/nearest_neighbors_cuda.cpp"
#include "../../csrc/cuda/nms_topk_cuda.cpp"
#include "../../csrc/cuda/sample_grid_cuda.cpp"
#include "../../csrc/ops.cpp"

namespace disk_ops {
namespace {

NeighborsBothWays nearest_neighbors_in_tiles(const at::Tensor& desc1,                  // [B, N, D]
                                             const at::Tensor& desc2,                  // [B, M, D]
                                             const std::optional<at::Tensor>& valid1,  // [B, N] bool
                                             const std::optional<at::Tensor>& valid2,  // [B, M] bool
                                             int64_t tile) {                           // a TileSize
  return nearest_neighbors_on_stream(desc1, desc2, valid1, valid2, static_cast<TileSize>(tile), nullptr);
}

at::Tensor describe_in_blocks(const at::Tensor& activation,  // [B, C, H, W]
                              const at::Tensor& weight,      // [D, C, k, k]
                              const at::Tensor& bias,        // [D]
                              const at::Tensor& keypoints,   // [B, N, 2] int64
                              int64_t patch_numbers) {       // that exist at a time
  return describe_on_stream(activation, weight, bias, keypoints, patch_numbers, nullptr);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> describe_backward_in_blocks(const at::Tensor& grad,        // [B, N, D]
                                                                           const at::Tensor& activation,  // [B, C, H, W]
                                                                           const at::Tensor& weight,      // [D, C, k, k]
                                                                           const at::Tensor& bias,        // [D]
                                                                           const at::Tensor& keypoints,   // [B, N, 2]
                                                                           int64_t patch_numbers) {
  return describe_backward_on_stream(grad, activation, weight, bias, keypoints, patch_numbers, nullptr);
}

void set_seed(int64_t seed) { cuda_emu::set_seed(static_cast<int>(seed)); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(disk_ops_emu, m) {
  m.def("nearest_neighbors_in_tiles", &nearest_neighbors_in_tiles);
  m.def("describe_in_blocks", &describe_in_blocks);
  m.def("describe_backward_in_blocks", &describe_backward_in_blocks);
  m.def("set_seed", &set_seed);
}

}  // namespace disk_ops
