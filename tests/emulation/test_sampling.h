// The kernels of sample_grid for the sanitizers: buffers of exactly the sizes that the launches take, and the
// definitions of log-probability and gradient for whatever was drawn. Part of test_kernels.cpp; draws are compared in
// test_emulated_sampling.py.
#pragma once

#include "../../csrc/cuda/sample_grid_kernel.cuh"

namespace disk_ops {
namespace {

template <typename T>
struct SampledCells {
  HeatmapView<T> view;
  int cell;
  const Buffer<int64_t>& keypoints;
  const Buffer<bool>& accepted;
  const Buffer<T>& logp;
  const Buffer<T>& grad_logp;
  const Buffer<T>& grad;

  void check_cell(int64_t b, int64_t index, int x0, int y0) const {
    const int x1 = std::min(x0 + cell, view.width), y1 = std::min(y0 + cell, view.height);
    const T* const image = view.heatmap + b * view.batch_stride;
    const bool* const mask = view.mask + b * view.batch_stride;
    double total = 0;
    for (int y = y0; y < y1; ++y)
      for (int x = x0; x < x1; ++x)
        if (mask[y * view.width + x]) total += std::exp(static_cast<double>(image[y * view.width + x]));
    const int64_t u = keypoints[2 * index], v = keypoints[2 * index + 1], drawn = v * view.width + u;
    check(u >= x0 && u < x1 && v >= y0 && v < y1, "sample: keypoint outside its cell");
    const double g = grad_logp[index], logit = image[drawn], sign = accepted[index] ? 1 : -1;
    const double log = logit - std::log(total) - std::log1p(std::exp(-sign * logit));
    check(total > 0 ? mask[drawn] : u == x0 && v == y0 && !accepted[index], "sample: keypoint");
    check(std::abs(logp[index] - (total > 0 ? log : 0)) < 1e-4, "sample: log-probability");
    for (int y = y0; y < y1; ++y)
      for (int x = x0; x < x1; ++x) {
        const int64_t pixel = y * view.width + x;
        double expected = mask[pixel] ? -g * std::exp(static_cast<double>(image[pixel])) / total : 0;
        if (pixel == drawn && total > 0) expected += g * (accepted[index] + 1 / (1 + std::exp(logit)));
        check(std::abs(grad[b * view.batch_stride + pixel] - expected) < 1e-4, "sample: gradient");
      }
  }
};

template <typename T>
void run_sample(int batch, int height, int width, int cell, bool argmax) {
  const int64_t plane = static_cast<int64_t>(height) * width, pixels = batch * plane;
  const int rows = (height + cell - 1) / cell, columns = (width + cell - 1) / cell;
  const int64_t cells = static_cast<int64_t>(batch) * rows * columns;
  std::mt19937 random(1);
  Buffer<T> heatmap(pixels), logp(cells, -1), grad_logp(cells), grad(pixels, -1);
  Buffer<bool> mask(pixels, true), accepted(cells);
  Buffer<int64_t> keypoints(2 * cells, -1);
  for (int64_t i = 0; i < pixels; ++i) heatmap[i] = static_cast<T>(static_cast<int>(random() % 17) - 8) / 4;
  for (int64_t i = 0; i < pixels; ++i) mask[i] = random() % 4 != 0;
  for (int64_t i = 0; i < cells; ++i) grad_logp[i] = static_cast<T>(static_cast<int>(random() % 9) - 4);
  const HeatmapView<T> view{heatmap.get(), mask.get(), plane, width, 1, plane, width, 1, batch, height, width};
  launch_sample_grid<T>(view, cell, 7, argmax, keypoints.get(), accepted.get(), logp.get(), nullptr);
  launch_sample_grid_backward<T>(view, cell, grad_logp.get(), keypoints.get(), accepted.get(), grad.get(), nullptr);
  const SampledCells<T> sampled{view, cell, keypoints, accepted, logp, grad_logp, grad};
  for (int64_t i = 0; i < cells; ++i)
    sampled.check_cell(i / (rows * columns), i, static_cast<int>(i % columns) * cell,
                       static_cast<int>(i / columns % rows) * cell);
}

void run_all_sample() {
  run_sample<float>(2, 19, 270, 8, false);
  run_sample<float>(1, 20, 35, 8, true);
  run_sample<double>(1, 66, 70, 64, false);
  run_sample<double>(1, 33, 260, 16, false);  // the most shared memory
  run_sample<float>(1, 2, 300, 1, false);
  run_sample<float>(1, 40, 41, 19, true);
}

}  // namespace
}  // namespace disk_ops
