// block_norm, block_convolution, block_activation and block_patches on the CPU: statistics, convolution, values and
// patches of an input that is pooled or up-sampled, joined with a skip, normalised and gated where it is read.
//
// Elements are float32, float16 or bfloat16; they are widened where they are read, everything is computed in float32, and
// what is stored is rounded once. Convolutions to one output, which are scores, stay float32.
//
// Results don't depend on the number of threads: sums are made in parts of fixed size, added up in their order.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "block.h"
#include "buffers.h"
#include "packing.h"

namespace disk_ops {
namespace {

constexpr int64_t kTiles = 12;       // at a time; a multiple of every register tile's rows
constexpr int64_t kMomentRows = 16;  // rows whose sums are added up in float64; even
constexpr double kEpsilon = 1e-5;    // of the instance norm

constexpr int64_t kStripRows = 16;   // of a direct convolution and of an activation; even
constexpr int64_t kOneRows = 64, kOneColumns = 64;  // a part of a convolution to one output; even
constexpr int64_t kOnePixels = 8;                   // of it at a time, in registers

struct Image {  // any strides
  const float* data;
  int64_t channels, height, width, channel_step, row_step, column_step;
};

struct Convolution {
  const float* weight;  // packed
  const float* bias;    // [padded_outputs]
  int64_t outputs, padded_outputs;
};

template <typename T>  // of a block's input and output
struct BlockKernel {
  int64_t lanes, rows, columns;  // of a register tile
  void (*sum_rows[3])(const BlockInput<T>&, int64_t first, int64_t count, const float* pivot, double* sum,
                      double* squares);
  void (*convolve[3])(const BlockInput<T>&, const Convolution&, int64_t first, int64_t count, float* scratch,
                      T* out);
  void (*convolve_to_one[3])(const BlockInput<T>&, const float* weight, float bias, int64_t top, int64_t left,
                             int64_t rows, int64_t columns, float* scratch, float* out);
  void (*read_rows[3])(const BlockInput<T>&, int64_t first, int64_t count, T* out);
  void (*read_patch[3])(const BlockInput<T>&, int64_t x, int64_t y, T* patch);
  void (*pack_weight)(const float* weight, int64_t channels, int64_t channel, int64_t outputs, int64_t padded_outputs,
                      float* packed);
  void (*convolve_rows)(const Image&, const Convolution&, int64_t first, int64_t count, float* strip, T* out);
};

}  // namespace
}  // namespace disk_ops

#define DISK_KERNELS "blocks_simd.h"
#include "instruction_sets.h"

namespace disk_ops {
namespace {

template <typename T>
at::Tensor norm_of(const Block<T>& block) {
  const BlockKernel<T> kernel = choose_kernel<T>();
  const int64_t channels = block.channels(), height = block.height();
  const int64_t parts = (height + kMomentRows - 1) / kMomentRows;
  at::Tensor result = at::empty({2, block.images(), channels}, at::kFloat);
  float* const mean = result.mutable_data_ptr<float>();
  float* const factor = mean + block.images() * channels;
  const double pixels = static_cast<double>(height) * static_cast<double>(block.width());
  std::vector<float> pivots(block.images() * channels);
  std::vector<double> sums(block.images() * parts * 2 * channels);
  const auto sum = kernel.sum_rows[block.resample()];
  const std::vector<float> zeros(channels);
  for (int64_t i = 0; i < block.images(); ++i) {  // near the mean, so that squares don't lose its digits
    double* const middle = sums.data() + i * parts * 2 * channels;
    sum(block.image(i), height / 4 * 2, 1, zeros.data(), middle, middle + channels);
    for (int64_t c = 0; c < channels; ++c)
      pivots[i * channels + c] = static_cast<float>(middle[c] / static_cast<double>(block.width()));
    std::fill_n(middle, 2 * channels, 0.0);
  }
  at::parallel_for(0, block.images() * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t row = part % parts * kMomentRows;
      double* const to = sums.data() + part * 2 * channels;
      sum(block.image(part / parts), row, std::min(kMomentRows, height - row),
          pivots.data() + part / parts * channels, to, to + channels);
    }
  });
  for (int64_t i = 0; i < block.images(); ++i)
    for (int64_t c = 0; c < channels; ++c) {
      double total = 0, squares = 0;
      for (int64_t part = i * parts; part < (i + 1) * parts; ++part) {
        total += sums[part * 2 * channels + c];
        squares += sums[(part * 2 + 1) * channels + c];
      }
      const double offset = total / pixels;
      const double variance = std::max(0.0, squares / pixels - offset * offset);
      mean[i * channels + c] = static_cast<float>(static_cast<double>(pivots[i * channels + c]) + offset);
      factor[i * channels + c] = static_cast<float>(1 / std::sqrt(variance + kEpsilon));
    }
  return result;
}

template <typename T>
at::Tensor winograd(const Block<T>& block,
                    const at::Tensor& weight,  // [K, C, 5, 5] float32
                    const at::Tensor& bias) {  // [K] float32
  const BlockKernel<T> kernel = choose_kernel<T>();
  const int64_t channels = block.channels(), outputs = weight.size(0);
  const int64_t padded = round_up(outputs, kernel.columns);
  std::vector<float> packed(64 * padded * channels), offsets(padded);
  std::copy_n(bias.const_data_ptr<float>(), outputs, offsets.data());
  at::parallel_for(0, channels, 8, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      kernel.pack_weight(weight.const_data_ptr<float>(), channels, c, outputs, padded, packed.data());
  });
  at::Tensor result = empty_channels_last({block.images(), outputs, block.height(), block.width()}, block.type());
  T* const out = result.mutable_data_ptr<T>();
  const Convolution layer{packed.data(), offsets.data(), outputs, padded};
  const int64_t tiles = ((block.height() + 3) / 4) * ((block.width() + 3) / 4);
  const int64_t runs = (tiles + kTiles - 1) / kTiles;
  const int64_t scratch_size = 64 * (kTiles * (channels + padded) + 32) + 8 * (4 * kTiles + 4) * kernel.lanes;
  at::parallel_for(0, block.images() * runs, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(scratch_size);
    for (int64_t run = begin; run < end; ++run) {
      const int64_t image = run / runs, first = run % runs * kTiles;
      kernel.convolve[block.resample()](block.image(image), layer, first, std::min(kTiles, tiles - first),
                                        scratch.data(), out + image * outputs * block.height() * block.width());
    }
  });
  return result;
}

template <typename T>
at::Tensor to_one(const Block<T>& block,
                  const at::Tensor& weight,  // [1, C, 5, 5] float32
                  const at::Tensor& bias) {  // [1] float32
  const BlockKernel<T> kernel = choose_kernel<T>();
  const int64_t channels = block.channels(), lanes = kernel.lanes;
  std::vector<float> taps(channels * 25);
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t tap = 0; tap < 25; ++tap)
      taps[(c / lanes * 25 + tap) * lanes + c % lanes] = weight.const_data_ptr<float>()[c * 25 + tap];
  at::Tensor result = empty_channels_last({block.images(), 1, block.height(), block.width()}, at::kFloat);
  float* const out = result.mutable_data_ptr<float>();
  const float offset = *bias.const_data_ptr<float>();
  const int64_t down = (block.height() + kOneRows - 1) / kOneRows, across = (block.width() + kOneColumns - 1) / kOneColumns;
  at::parallel_for(0, block.images() * down * across, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(6 * (kOneColumns + 4) * channels);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / (down * across), top = i / across % down * kOneRows, left = i % across * kOneColumns;
      kernel.convolve_to_one[block.resample()](block.image(image), taps.data(), offset, top, left,
                                               std::min(kOneRows, block.height() - top),
                                               std::min(kOneColumns, block.width() - left), scratch.data(),
                                               out + image * block.height() * block.width());
    }
  });
  return result;
}

template <typename T>
at::Tensor direct(const at::Tensor& image,   // [B, C, H, W] of T, with few channels: widened as a whole
                  const at::Tensor& weight,  // [K, C, 5, 5] float32
                  const at::Tensor& bias) {  // [K] float32
  const BlockKernel<T> kernel = choose_kernel<T>();
  const at::Tensor x = image.to(at::kFloat);
  const int64_t channels = x.size(1), height = x.size(2), width = x.size(3), outputs = weight.size(0);
  const int64_t padded = round_up(outputs, kernel.columns), depth = 5 * channels;
  std::vector<float> packed(25 * channels * padded), offsets(padded);
  std::copy_n(bias.const_data_ptr<float>(), outputs, offsets.data());
  const float* const filters = weight.const_data_ptr<float>();
  for (int64_t k = 0; k < outputs; ++k)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t v = 0; v < 5; ++v)
        for (int64_t u = 0; u < 5; ++u)
          packed[((k / kernel.columns * 5 + v) * depth + u * channels + c) * kernel.columns + k % kernel.columns] =
              filters[((k * channels + c) * 5 + v) * 5 + u];
  at::Tensor result = empty_channels_last({x.size(0), outputs, height, width}, image.scalar_type());
  T* const out = result.mutable_data_ptr<T>();
  const float* const from = x.const_data_ptr<float>();
  const Convolution layer{packed.data(), offsets.data(), outputs, padded};
  const int64_t strips = (height + kStripRows - 1) / kStripRows;
  at::parallel_for(0, x.size(0) * strips, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> strip((kStripRows + 4) * (round_up(width, kernel.rows) + 4) * channels);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / strips, first = i % strips * kStripRows;
      const Image view{from + image * x.stride(0), channels, height, width, x.stride(1), x.stride(2), x.stride(3)};
      kernel.convolve_rows(view, layer, first, std::min(kStripRows, height - first), strip.data(),
                           out + image * outputs * height * width);
    }
  });
  return result;
}

template <typename T>
at::Tensor activation_of(const Block<T>& block) {
  const auto read_rows = choose_kernel<T>().read_rows[block.resample()];
  const int64_t height = block.height(), size = height * block.width() * block.channels();
  at::Tensor result = empty_channels_last({block.images(), block.channels(), height, block.width()}, block.type());
  T* const out = result.mutable_data_ptr<T>();
  const int64_t strips = (height + kStripRows - 1) / kStripRows;
  at::parallel_for(0, block.images() * strips, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % strips * kStripRows;
      read_rows(block.image(i / strips), first, std::min(kStripRows, height - first), out + i / strips * size);
    }
  });
  return result;
}

template <typename T>
at::Tensor patches_of(const Block<T>& block,
                      const at::Tensor& points) {  // [B, N, 2] int64 xy, contiguous
  const auto read_patch = choose_kernel<T>().read_patch[block.resample()];
  const int64_t number = points.size(1), size = 25 * block.channels();
  at::Tensor result = empty_channels_last({block.images() * number, block.channels(), 5, 5}, block.type());
  T* const out = result.mutable_data_ptr<T>();
  const int64_t* const xy = points.const_data_ptr<int64_t>();
  at::parallel_for(0, block.images() * number, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      read_patch(block.image(i / number), xy[2 * i], xy[2 * i + 1], out + i * size);
  });
  return result.view({block.images(), number, block.channels(), 5, 5});
}

at::Tensor block_norm(const at::Tensor& x,                   // [B, C1, h, w]
                      const std::optional<at::Tensor>& skip,  // [B, C2, H, W]
                      std::string_view resample) {
  check_block(x, skip, std::nullopt, std::nullopt, resample);
  check_lanes(x, skip);
  return with_block_type(x, [&](auto element) {
    return norm_of(Block<decltype(element)>(x, skip, std::nullopt, std::nullopt, resample));
  });
}

at::Tensor block_convolution(const at::Tensor& x,                    // [B, C1, h, w]
                             const at::Tensor& weight,               // [K, C1 + C2, 5, 5]
                             const at::Tensor& bias,                 // [K]
                             const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
                             const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
                             const std::optional<at::Tensor>& slope,  // [C1 + C2]
                             std::string_view resample) {
  check_block(x, skip, norm, slope, resample);
  check_block_weight(x, skip, weight, bias, kMostLanes);
  const at::Tensor filters = weight.to(at::kFloat).contiguous(), offsets = bias.to(at::kFloat).contiguous();
  const bool to_many = weight.size(0) > 1, lanes = x.size(1) % kMostLanes == 0;
  const bool of_image = !norm && !slope && !skip && resample == "none" && !lanes && to_many;
  if (!of_image) check_lanes(x, skip);
  return with_block_type(x, [&](auto element) {
    using T = decltype(element);
    if (of_image) return direct<T>(x, filters, offsets);
    const Block<T> block(x, skip, norm, slope, resample);
    return to_many ? winograd(block, filters, offsets) : to_one(block, filters, offsets);
  });
}

at::Tensor block_activation(const at::Tensor& x,                    // [B, C1, h, w]
                            const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
                            const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
                            const std::optional<at::Tensor>& slope,  // [C1 + C2]
                            std::string_view resample) {
  check_block(x, skip, norm, slope, resample);
  check_lanes(x, skip);
  return with_block_type(x, [&](auto element) {
    return activation_of(Block<decltype(element)>(x, skip, norm, slope, resample));
  });
}

at::Tensor block_patches(const at::Tensor& x,                    // [B, C1, h, w]
                         const at::Tensor& keypoints,            // [B, N, 2] int64 xy
                         const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
                         const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
                         const std::optional<at::Tensor>& slope,  // [C1 + C2]
                         std::string_view resample) {
  check_block(x, skip, norm, slope, resample);
  check_block_keypoints(x, keypoints);
  check_lanes(x, skip);
  const at::Tensor points = keypoints.contiguous();
  return with_block_type(x, [&](auto element) {
    const Block<decltype(element)> block(x, skip, norm, slope, resample);
    check_inside(points, block.height(), block.width());
    return patches_of(block, points);
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(disk_ops, CPU, m) {
  m.impl("block_norm", &block_norm);
  m.impl("block_convolution", &block_convolution);
  m.impl("block_activation", &block_activation);
  m.impl("block_patches", &block_patches);
}

}  // namespace disk_ops
