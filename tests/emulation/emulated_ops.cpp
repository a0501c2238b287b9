// The CUDA kernels and their launches as ops on CPU tensors, run by the emulator: disk_ops_emu::*.
#include <torch/library.h>

#include "../../csrc/cuda/describe_kernel.cuh"
#include "../../csrc/cuda/describe_launch.h"
#include "../../csrc/cuda/nearest_neighbors_kernel.cuh"
#include "../../csrc/cuda/nearest_neighbors_launch.h"
#include "../../csrc/cuda/nms_topk_kernel.cuh"
#include "../../csrc/cuda/nms_topk_launch.h"
#include "emulated_blocks.h"
#include "emulated_match.h"
#include "emulated_sampling.h"

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
                                    int64_t tile) {                           // a TileSize
  check_nearest_neighbors(desc1, desc2, valid1, valid2);
  return nearest_neighbors_on_stream(desc1, desc2, valid1, valid2, static_cast<TileSize>(tile), nullptr);
}

at::Tensor describe(const at::Tensor& activation,  // [B, C, H, W]
                    const at::Tensor& weight,      // [D, C, k, k]
                    const at::Tensor& bias,        // [D]
                    const at::Tensor& keypoints,   // [B, N, 2] int64
                    int64_t patch_numbers) {       // that exist at a time
  check_describe(activation, weight, bias, keypoints);
  return describe_on_stream(activation, weight, bias, keypoints, patch_numbers, nullptr);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> describe_backward(const at::Tensor& grad,        // [B, N, D]
                                                                 const at::Tensor& activation,  // [B, C, H, W]
                                                                 const at::Tensor& weight,      // [D, C, k, k]
                                                                 const at::Tensor& bias,        // [D]
                                                                 const at::Tensor& keypoints,   // [B, N, 2]
                                                                 int64_t patch_numbers) {
  check_describe(activation, weight, bias, keypoints);
  check_describe_grad(grad, activation, weight, keypoints);
  return describe_backward_on_stream(grad, activation, weight, bias, keypoints, patch_numbers, nullptr);
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
  m.def(
      "describe(Tensor activation, Tensor weight, Tensor bias, Tensor keypoints, int patch_numbers=16777216)"
      " -> Tensor");
  m.def(
      "_describe_backward(Tensor grad, Tensor activation, Tensor weight, Tensor bias, Tensor keypoints,"
      " int patch_numbers=16777216) -> (Tensor, Tensor, Tensor)");
  m.def(
      "distance_matrix(Tensor desc1, Tensor desc2) -> Tensor");
  m.def(
      "match_statistics(Tensor desc1, Tensor desc2, Tensor inverse_temperature, Tensor? valid1, Tensor? valid2)"
      " -> (Tensor logsumexp1, Tensor logsumexp2)");
  m.def(
      "_match_sums(Tensor desc1, Tensor desc2, Tensor inverse_temperature, Tensor? valid1, Tensor? valid2,"
      " Tensor logsumexp1, Tensor logsumexp2, Tensor? reward, Tensor? keypoints1, Tensor? keypoints2, Tensor? warped1,"
      " Tensor? warped2, Tensor? fundamental, float epsilon, float lambda_tp, float lambda_fp, bool official,"
      " Tensor? weight1, Tensor? weight2, Tensor? weight0)"
      " -> (Tensor sum1, Tensor sum2, Tensor probability1)");
  m.def(
      "_match_backward(Tensor desc1, Tensor desc2, Tensor inverse_temperature, Tensor? valid1, Tensor? valid2,"
      " Tensor logsumexp1, Tensor logsumexp2, Tensor? reward, Tensor? keypoints1, Tensor? keypoints2, Tensor? warped1,"
      " Tensor? warped2, Tensor? fundamental, float epsilon, float lambda_tp, float lambda_fp, bool official,"
      " Tensor? weight1, Tensor? weight2, Tensor? weight0, Tensor sum1, Tensor sum2, bool reward_gradient)"
      " -> (Tensor grad1, Tensor grad2, Tensor grad_inverse_temperature, Tensor grad_reward)");
  m.def(
      "sample_grid(Tensor heatmap, int cell, Tensor seed, bool argmax, Tensor? mask)"
      " -> (Tensor keypoints, Tensor accepted, Tensor logp)");
  m.def(
      "_sample_grid_backward(Tensor grad_logp, Tensor heatmap, int cell, Tensor keypoints, Tensor accepted,"
      " Tensor? mask) -> Tensor");
  m.def("block_norm(Tensor x, Tensor? skip, str resample) -> Tensor");
  m.def(
      "block_convolution(Tensor x, Tensor weight, Tensor bias, Tensor? skip, Tensor? norm, Tensor? slope,"
      " str resample) -> Tensor");
  m.def("block_activation(Tensor x, Tensor? skip, Tensor? norm, Tensor? slope, str resample) -> Tensor");
  m.def(
      "block_patches(Tensor x, Tensor keypoints, Tensor? skip, Tensor? norm, Tensor? slope, str resample) -> Tensor");
  m.def("set_seed(int seed) -> ()", &set_seed);
}

TORCH_LIBRARY_IMPL(disk_ops_emu, CPU, m) {
  m.impl("nms_topk", &nms_topk);
  m.impl("nearest_neighbors", &nearest_neighbors);
  m.impl("describe", &describe);
  m.impl("_describe_backward", &describe_backward);
  m.impl("sample_grid", &sample_grid);
  m.impl("_sample_grid_backward", &sample_grid_backward);
  m.impl("distance_matrix", &distance_matrix);
  m.impl("match_statistics", &match_statistics);
  m.impl("_match_sums", &match_sums);
  m.impl("_match_backward", &match_backward);
  m.impl("block_norm", &block_norm);
  m.impl("block_convolution", &block_convolution);
  m.impl("block_activation", &block_activation);
  m.impl("block_patches", &block_patches);
}

}  // namespace disk_ops
