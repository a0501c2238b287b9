// The gradients of the blocks of the U-Net on the CPU: of their input and of their convolution's weights. What lies
// between input and convolution is computed again from the input, as the forward pass doesn't store it.
//
// Results don't depend on the number of threads: sums are made in parts of fixed size, added up in their order.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "block.h"
#include "buffers.h"
#include "packing.h"

namespace disk_ops {
namespace {

constexpr int64_t kPairs = 8;            // of rows, at a time
constexpr int64_t kWeightTiles = 32;     // of 4x4 pixels, at a time
constexpr int64_t kWeightColumns = 192;  // of a convolution to one output, at a time
constexpr int64_t kMostParts = 16;       // of all images, each with weight gradients of its own until the end
constexpr int64_t kPartChunks = 8;       // at least, in a part

struct BackwardKernel {
  int64_t lanes, rows, columns;  // of a register tile
  void (*sum_gradient[3])(const BlockInput<float>&, const BlockGradient&, int64_t first, int64_t count, double* sums);
  void (*gradient_of_input[3])(const BlockInput<float>&, const BlockGradient&, int64_t first, int64_t count, float* grad_x,
                               float* grad_skip);
  void (*sum_tiles[3])(const BlockInput<float>&, const float* grad, int64_t outputs, int64_t first, int64_t count,
                       float* scratch, float* sums);
  void (*sum_taps[3])(const BlockInput<float>&, const float* grad, int64_t first, int64_t count, float* scratch, float* sums);
  void (*finish_weight)(const float* sums, int64_t point_step, int64_t channels, float* grad_weight);
};

}  // namespace
}  // namespace disk_ops

#define DISK_KERNELS "block_backward_simd.h"
#include "instruction_sets.h"

namespace disk_ops {
namespace {

void check_block_gradient(const at::Tensor& grad,  // [B, K, H, W]
                          const Block<float>& block, int64_t channels) {
  check_float(grad, "grad");
  TORCH_CHECK(grad.dim() == 4 && grad.size(0) == block.images() && (channels < 0 || grad.size(1) == channels) &&
                  grad.size(2) == block.height() && grad.size(3) == block.width(),
              "grad must be that of the block's output, of size [", block.images(), ", C, ", block.height(), ", ",
              block.width(), "], got ", grad.sizes());
}

// Sums of sum_gradient over each image: [B, 3, channels].
std::vector<double> gradient_sums(const Block<float>& block, const BackwardKernel& kernel, const float* grad) {
  const int64_t channels = block.channels(), height = block.height(), rows = 2 * kPairs;
  const int64_t parts = (height + rows - 1) / rows, size = height * block.width() * channels;
  std::vector<double> of_parts(block.images() * parts * 3 * channels), sums(block.images() * 3 * channels);
  at::parallel_for(0, block.images() * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / parts, first = i % parts * rows;
      kernel.sum_gradient[block.resample()](block.image(image), {grad + image * size, nullptr, nullptr}, first,
                                            std::min(rows, height - first), of_parts.data() + i * 3 * channels);
    }
  });
  for (int64_t i = 0; i < block.images() * parts; ++i)
    for (int64_t c = 0; c < 3 * channels; ++c) sums[i / parts * 3 * channels + c] += of_parts[i * 3 * channels + c];
  return sums;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> block_input_backward(
    const at::Tensor& grad,                  // [B, C1 + C2, H, W]
    const at::Tensor& x,                     // [B, C1, h, w]
    const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
    const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
    const std::optional<at::Tensor>& slope,  // [C1 + C2]
    std::string_view resample) {
  check_block(x, skip, norm, slope, resample, BlockTypes::kFloat);
  check_lanes(x, skip);
  const Block<float> block(x, skip, norm, slope, resample);
  check_block_gradient(grad, block, block.channels());
  const at::Tensor outer = grad.contiguous(at::MemoryFormat::ChannelsLast);
  const float* const from = outer.const_data_ptr<float>();
  const BackwardKernel kernel = choose_kernel<float>();
  const int64_t images = block.images(), channels = block.channels(), pixels = block.height() * block.width();
  std::vector<double> sums;
  if (norm || slope) sums = gradient_sums(block, kernel, from);
  std::vector<float> means(images * 2 * channels);
  for (int64_t i = 0; norm && i < images * 2 * channels; ++i)
    means[i] = static_cast<float>(sums[i / (2 * channels) * 3 * channels + i % (2 * channels)] /
                                  static_cast<double>(pixels));
  at::Tensor grad_x = empty_channels_last(x.sizes(), at::kFloat);
  if (resample != "none") grad_x.zero_();
  at::Tensor grad_skip = skip ? empty_channels_last(skip->sizes(), at::kFloat) : at::empty({0}, x.options());
  float* const to_x = grad_x.mutable_data_ptr<float>();
  float* const to_skip = grad_skip.mutable_data_ptr<float>();
  const int64_t pairs = (block.height() + 1) / 2, parts = (pairs + kPairs - 1) / kPairs;
  at::parallel_for(0, images * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / parts, first = i % parts * kPairs;
      const float* const mean = norm ? means.data() + image * 2 * channels : nullptr;
      const BlockGradient gradient{from + image * pixels * channels, mean, norm ? mean + channels : nullptr};
      kernel.gradient_of_input[block.resample()](block.image(image), gradient, first, std::min(kPairs, pairs - first),
                                                 to_x + image * (x.numel() / images),
                                                 to_skip + image * (grad_skip.numel() / images));
    }
  });
  at::Tensor grad_slope = at::zeros({slope ? channels : 0}, x.options());
  float* const to_slope = grad_slope.mutable_data_ptr<float>();
  for (int64_t c = 0; slope && c < channels; ++c) {
    double total = 0;
    for (int64_t image = 0; image < images; ++image) total += sums[(image * 3 + 2) * channels + c];
    to_slope[c] = static_cast<float>(total);
  }
  return {grad_x, grad_skip, grad_slope};
}

// Adds up `count` things of each image, `chunk` at a time, in parts with sums of their own: [parts, size].
template <typename Add>
std::vector<float> sum_in_parts(int64_t images, int64_t count, int64_t chunk, int64_t size, int64_t scratch_size,
                                const Add& add) {
  const int64_t chunks = (count + chunk - 1) / chunk, all = images * chunks;
  const int64_t parts = std::clamp<int64_t>(all / kPartChunks, 1, kMostParts);
  std::vector<float> sums(parts * size);
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(scratch_size);
    for (int64_t part = begin; part < end; ++part)
      for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) {
        const int64_t first = i % chunks * chunk;
        add(i / chunks, first, std::min(chunk, count - first), scratch.data(), sums.data() + part * size);
      }
  });
  return sums;
}

// The gradient of weights [1, channels, 5, 5].
void gradient_to_one(const Block<float>& block, const BackwardKernel& kernel, const float* grad, float* out) {
  const int64_t channels = block.channels(), size = 25 * channels;
  const int64_t scratch = 6 * (kWeightColumns + 4) + 2 * kWeightColumns * kernel.lanes;
  const std::vector<float> sums = sum_in_parts(
      block.images(), block.height(), 2 * kPairs, size, scratch,
      [&](int64_t image, int64_t first, int64_t count, float* scratch, float* to) {
        kernel.sum_taps[block.resample()](block.image(image), grad + image * block.height() * block.width(), first,
                                          count, scratch, to);
      });
  for (int64_t i = 0; i < size; ++i) {
    double total = 0;
    for (size_t at = i; at < sums.size(); at += size) total += static_cast<double>(sums[at]);
    out[i % channels * 25 + i / channels] = static_cast<float>(total);
  }
}

// The gradient of weights [outputs, channels, 5, 5].
void gradient_by_winograd(const Block<float>& block, const BackwardKernel& kernel, int64_t outputs, const float* grad,
                          float* out) {
  const int64_t channels = block.channels(), image_size = outputs * block.height() * block.width();
  const int64_t padded_outputs = round_up(outputs, kernel.rows), padded_channels = round_up(channels, kernel.columns);
  const int64_t size = 64 * padded_outputs * padded_channels;
  const int64_t scratch = 64 * (kWeightTiles * (channels + outputs) + 32) + 64 + 8 * (4 * kWeightTiles + 4) * kernel.lanes;
  std::vector<float> sums = sum_in_parts(
      block.images(), ((block.height() + 3) / 4) * ((block.width() + 3) / 4), kWeightTiles, size, scratch,
      [&](int64_t image, int64_t first, int64_t count, float* scratch, float* to) {
        kernel.sum_tiles[block.resample()](block.image(image), grad + image * image_size, outputs, first, count,
                                           scratch, to);
      });
  const int64_t point_step = padded_outputs * padded_channels, parts = static_cast<int64_t>(sums.size()) / size;
  at::parallel_for(0, outputs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      float* const mine = sums.data() + k * padded_channels;
      for (int64_t point = 0; point < 64; ++point)
        for (int64_t c = 0; c < channels; ++c)
          for (int64_t part = 1; part < parts; ++part)
            mine[point * point_step + c] += mine[part * size + point * point_step + c];
      kernel.finish_weight(mine, point_step, channels, out + k * channels * 25);
    }
  });
}

at::Tensor block_weight_backward(const at::Tensor& grad,                  // [B, K, H, W]
                                 const at::Tensor& x,                     // [B, C1, h, w]
                                 const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
                                 const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
                                 const std::optional<at::Tensor>& slope,  // [C1 + C2]
                                 std::string_view resample) {
  check_block(x, skip, norm, slope, resample, BlockTypes::kFloat);
  check_lanes(x, skip);
  const Block<float> block(x, skip, norm, slope, resample);
  check_block_gradient(grad, block, -1);
  const int64_t outputs = grad.size(1);
  TORCH_CHECK_VALUE(outputs == 1 || (outputs > 0 && outputs % kMostLanes == 0), "grad must have 1 channel or a multiple of ",
                    kMostLanes, ", got ", grad.sizes());
  const at::Tensor outer = grad.contiguous(at::MemoryFormat::ChannelsLast);
  const BackwardKernel kernel = choose_kernel<float>();
  auto result = at::empty({outputs, block.channels(), 5, 5}, x.options().memory_format(at::MemoryFormat::Contiguous));
  if (outputs == 1)
    gradient_to_one(block, kernel, outer.const_data_ptr<float>(), result.mutable_data_ptr<float>());
  else
    gradient_by_winograd(block, kernel, outputs, outer.const_data_ptr<float>(), result.mutable_data_ptr<float>());
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(disk_ops, CPU, m) {
  m.impl("_block_input_backward", &block_input_backward);
  m.impl("_block_weight_backward", &block_weight_backward);
}

}  // namespace disk_ops
