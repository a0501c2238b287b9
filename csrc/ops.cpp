// The table of contents of the native side: the schema of every op, and nothing else.
//
// Kernels register themselves where they are defined, by TORCH_LIBRARY_IMPL(disk_ops, CPU | CUDA, m) at the end of
// csrc/cpu/<op>_cpu.cpp and csrc/cuda/<op>_cuda.cpp. Fake kernels and autograd are registered from Python
// (disk_ops/ops/). disk_ops/_library.py repeats these strings, for a package without its compiled library;
// tests/test_library.py checks that both places agree.

#include <ATen/core/enum_tag.h>
#include <torch/library.h>

TORCH_LIBRARY(disk_ops, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};

  m.def(
      "nms_topk(Tensor heatmap, int? n, int window_size, float? score_threshold, int border, Tensor? mask)"
      " -> (Tensor keypoints, Tensor scores, Tensor valid)",
      tags);

  m.def(
      "nearest_neighbors(Tensor desc1, Tensor desc2, Tensor? valid1, Tensor? valid2)"
      " -> (Tensor distances1, Tensor indices1, Tensor distances2, Tensor indices2)",
      tags);
}
