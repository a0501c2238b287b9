// The kernels of the block ops for the sanitizers: buffers of exactly the sizes that the launches take, and values that
// are easy to compute. Part of test_kernels.cpp; rounding is looked at in test_emulated_blocks.py.
#pragma once

#include "../../csrc/cuda/blocks_kernel.cuh"

namespace disk_ops {
namespace {

struct BlockCase {
  int batch, channels, height, width, skip;  // of x, and the channels of the skip
  Resample resample;
};

struct BlockBuffers {
  BlockCase c;
  int height, width, channels;
  Buffer<float> x, skip, slope, norm, weight, bias;

  explicit BlockBuffers(const BlockCase& c)
      : c(c),
        height(c.resample == Resample::kUp ? 2 * c.height : c.resample == Resample::kPool ? c.height / 2 : c.height),
        width(c.resample == Resample::kUp ? 2 * c.width : c.resample == Resample::kPool ? c.width / 2 : c.width),
        channels(c.channels + c.skip),
        x(static_cast<int64_t>(c.batch) * c.height * c.width * c.channels),
        skip(static_cast<int64_t>(c.batch) * height * width * c.skip),
        slope(channels, 0.5f),
        norm(2 * c.batch * channels),
        weight(channels * 25),
        bias(1, 2.0f) {
    std::mt19937 random(1);
    for (const Buffer<float>* buffer : {&x, &skip, &weight})
      for (size_t i = 0; i < buffer->size; ++i) buffer->data[i] = static_cast<float>(static_cast<int>(random() % 33) - 16);
  }

  BlockView<float> view() const {
    return {{x.get(), c.height, c.width, c.channels, 0, c.resample},
            {skip.get(), height, width, c.skip, c.channels, Resample::kNone},
            norm.get(),
            slope.get(),
            c.batch,
            channels,
            height,
            width};
  }

  double before_norm(int64_t image, int y, int x0, int channel) const {
    if (channel >= c.channels)
      return skip[((image * height + y) * width + x0) * c.skip + channel - c.channels];
    const auto at = [&](int v, int u) {
      v = std::min(std::max(v, 0), c.height - 1), u = std::min(std::max(u, 0), c.width - 1);
      return static_cast<double>(x[((image * c.height + v) * c.width + u) * c.channels + channel]);
    };
    if (c.resample == Resample::kNone) return at(y, x0);
    if (c.resample == Resample::kPool)
      return (at(2 * y, 2 * x0) + at(2 * y, 2 * x0 + 1) + at(2 * y + 1, 2 * x0) + at(2 * y + 1, 2 * x0 + 1)) / 4;
    const int far_y = y / 2 + (y % 2 ? 1 : -1), far_x = x0 / 2 + (x0 % 2 ? 1 : -1);
    return (at(y / 2, x0 / 2) * 9 + (at(far_y, x0 / 2) + at(y / 2, far_x)) * 3 + at(far_y, far_x)) / 16;
  }

  double activation(int64_t image, int y, int x0, int channel) const {
    if (y < 0 || y >= height || x0 < 0 || x0 >= width) return 0;
    const int64_t row = image * channels + channel;
    const double value = (before_norm(image, y, x0, channel) - norm[row]) * norm[c.batch * channels + row];
    return value > 0 ? value : value * slope[channel];
  }
};

bool is_near(double ours, double exact) { return std::abs(ours - exact) < 1e-4 * (1 + std::abs(exact)); }

void check_block_norm(const BlockBuffers& block) {
  const double pixels = static_cast<double>(block.height) * block.width;
  for (int64_t row = 0; row < static_cast<int64_t>(block.c.batch) * block.channels; ++row) {
    double sum = 0, squares = 0;
    for (int y = 0; y < block.height; ++y)
      for (int x = 0; x < block.width; ++x) {
        const double value = block.before_norm(row / block.channels, y, x, static_cast<int>(row % block.channels));
        sum += value, squares += value * value;
      }
    const double mean = sum / pixels, factor = 1 / std::sqrt(squares / pixels - mean * mean + 1e-5);
    check(is_near(block.norm[row], mean), "block: mean");
    check(is_near(block.norm[block.c.batch * block.channels + row], factor), "block: factor");
  }
}

void run_block(const BlockCase& c) {
  const BlockBuffers block(c);
  const int channels = block.channels, height = block.height, width = block.width;
  const int64_t pixels = static_cast<int64_t>(c.batch) * height * width, count = 3, patch = 25 * channels;
  Buffer<Moments> moments(c.batch * channels * block_parts(height, width));
  Buffer<float> values(pixels * channels), patches(c.batch * count * patch), heatmap(pixels);
  Buffer<int64_t> keypoints(c.batch * count * 2);
  for (int64_t i = 0; i < c.batch * count; ++i)
    keypoints[2 * i] = (width - 1) * (i % 2), keypoints[2 * i + 1] = (height - 1) * (i % 3) / 2;
  launch_block_norm(block.view(), moments.get(), block.norm.get(), nullptr);
  check_block_norm(block);
  launch_block_activation(block.view(), values.get(), nullptr);
  launch_block_patches(block.view(), keypoints.get(), count, patches.get(), nullptr);
  launch_block_head(block.view(), block.weight.get(), block.bias.get(), heatmap.get(), nullptr);

  for (int64_t i = 0; i < pixels; ++i) {
    const int64_t image = i / height / width;
    const int y = static_cast<int>(i / width % height), x = static_cast<int>(i % width);
    double sum = block.bias[0];
    for (int channel = 0; channel < channels; ++channel) {
      check(is_near(values[i * channels + channel], block.activation(image, y, x, channel)), "block: activation");
      for (int tap = 0; tap < 25; ++tap)
        sum += block.weight[channel * 25 + tap] * block.activation(image, y + tap / 5 - 2, x + tap % 5 - 2, channel);
    }
    check(std::abs(heatmap[i] - sum) < 1e-2, "block: heatmap");
  }
  for (int64_t i = 0; i < c.batch * count * patch; ++i) {
    const int64_t row = i / patch;
    const int offset = static_cast<int>(i / channels % 25);
    const int y = static_cast<int>(keypoints[2 * row + 1]) + offset / 5 - 2;
    const int x = static_cast<int>(keypoints[2 * row]) + offset % 5 - 2;
    check(is_near(patches[i], block.activation(row / count, y, x, static_cast<int>(i % channels))), "block: patch");
  }
}

void run_all_blocks() {
  run_block({2, 4, 5, 6, 4, Resample::kUp});
  run_block({1, 3, 7, 9, 2, Resample::kPool});
  run_block({1, 8, 31, 3, 0, Resample::kNone});
  run_block({1, 1, 1, 66, 0, Resample::kNone});
}

}  // namespace
}  // namespace disk_ops
