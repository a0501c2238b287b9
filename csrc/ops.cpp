// The table of contents of the native side: the schema of every op, and nothing else.
//
// Kernels register themselves where they are defined, at the end of csrc/cpu/<op>_cpu.cpp and csrc/cuda/<op>_cuda.cpp.
// Fake kernels and autograd are registered from Python (disk_ops/ops/). disk_ops/_library.py repeats these strings, for
// a package without its compiled library; tests/test_library.py checks that both places agree.

#include <ATen/core/enum_tag.h>

#include "library.h"

DISK_LIBRARY(m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};

  m.def(
      "nms_topk(Tensor heatmap, int? n, int window_size, float? score_threshold, int border, Tensor? mask)"
      " -> (Tensor keypoints, Tensor scores, Tensor valid)",
      tags);

  m.def(
      "nearest_neighbors(Tensor desc1, Tensor desc2, Tensor? valid1, Tensor? valid2)"
      " -> (Tensor distances1, Tensor indices1, Tensor distances2, Tensor indices2)",
      tags);

  m.def(
      "distance_matrix(Tensor desc1, Tensor desc2) -> Tensor",
      tags);

  m.def(
      "match_statistics(Tensor desc1, Tensor desc2, Tensor inverse_temperature, Tensor? valid1, Tensor? valid2)"
      " -> (Tensor logsumexp1, Tensor logsumexp2)",
      tags);

  m.def(
      "_match_sums(Tensor desc1, Tensor desc2, Tensor inverse_temperature, Tensor? valid1, Tensor? valid2,"
      " Tensor logsumexp1, Tensor logsumexp2, Tensor? reward, Tensor? keypoints1, Tensor? keypoints2, Tensor? warped1,"
      " Tensor? warped2, Tensor? fundamental, float epsilon, float lambda_tp, float lambda_fp, bool official,"
      " Tensor? weight1, Tensor? weight2, Tensor? weight0)"
      " -> (Tensor sum1, Tensor sum2, Tensor probability1)",
      tags);

  m.def(
      "_match_backward(Tensor desc1, Tensor desc2, Tensor inverse_temperature, Tensor? valid1, Tensor? valid2,"
      " Tensor logsumexp1, Tensor logsumexp2, Tensor? reward, Tensor? keypoints1, Tensor? keypoints2, Tensor? warped1,"
      " Tensor? warped2, Tensor? fundamental, float epsilon, float lambda_tp, float lambda_fp, bool official,"
      " Tensor? weight1, Tensor? weight2, Tensor? weight0, Tensor sum1, Tensor sum2, bool reward_gradient)"
      " -> (Tensor grad1, Tensor grad2, Tensor grad_inverse_temperature, Tensor grad_reward)",
      tags);

  m.def("describe(Tensor activation, Tensor weight, Tensor bias, Tensor keypoints) -> Tensor", tags);

  m.def(
      "_describe_backward(Tensor grad, Tensor activation, Tensor weight, Tensor bias, Tensor keypoints)"
      " -> (Tensor grad_activation, Tensor grad_weight, Tensor grad_bias)",
      tags);

  m.def(
      "sample_grid(Tensor heatmap, int cell, Tensor seed, bool argmax, Tensor? mask)"
      " -> (Tensor keypoints, Tensor accepted, Tensor logp)",
      tags);

  m.def(
      "_sample_grid_backward(Tensor grad_logp, Tensor heatmap, int cell, Tensor keypoints, Tensor accepted,"
      " Tensor? mask) -> Tensor",
      tags);

  m.def("block_norm(Tensor x, Tensor? skip, str resample) -> Tensor", tags);

  m.def(
      "block_convolution(Tensor x, Tensor weight, Tensor bias, Tensor? skip, Tensor? norm, Tensor? slope,"
      " str resample) -> Tensor",
      tags);

  m.def("block_activation(Tensor x, Tensor? skip, Tensor? norm, Tensor? slope, str resample) -> Tensor", tags);

  m.def(
      "_block_input_backward(Tensor grad, Tensor x, Tensor? skip, Tensor? norm, Tensor? slope, str resample)"
      " -> (Tensor grad_x, Tensor grad_skip, Tensor grad_slope)",
      tags);

  m.def(
      "_block_weight_backward(Tensor grad, Tensor x, Tensor? skip, Tensor? norm, Tensor? slope, str resample)"
      " -> Tensor",
      tags);

  m.def(
      "block_patches(Tensor x, Tensor keypoints, Tensor? skip, Tensor? norm, Tensor? slope, str resample) -> Tensor",
      tags);
}
