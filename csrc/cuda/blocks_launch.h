// The ops on blocks of the U-Net on tensors: allocation, launches, and ATen's convolution where there are many outputs.
// Shared by the CUDA glue and the emulated ops of the tests, where the convolution is that of the CPU.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "../block_arguments.h"
#include "blocks_kernel.h"

namespace disk_ops {

inline void check_block_launch(cudaError_t error) {
  TORCH_CHECK(error == cudaSuccess, "a block op failed to launch: ", cudaGetErrorString(error));
}

// Calls use(T{}) with T the type of x as kernels see it.
template <typename Use>
auto with_block_type(at::ScalarType type, const Use& use) {
  switch (type) {
    case at::kHalf: return use(Half{});
    case at::kBFloat16: return use(BFloat16{});
    default: return use(float{});
  }
}

// The tensors of a block, channels last. Tensors that are so already are not copied.
class BlockTensors {
 public:
  BlockTensors(const at::Tensor& x,                    // [B, C1, h, w]
               const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
               const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
               const std::optional<at::Tensor>& slope,  // [C1 + C2]
               std::string_view resample)
      : x_(x.contiguous(at::MemoryFormat::ChannelsLast)),
        resample_(resample == "pool" ? Resample::kPool : resample == "up" ? Resample::kUp : Resample::kNone) {
    if (skip) skip_ = skip->contiguous(at::MemoryFormat::ChannelsLast);
    if (norm) norm_ = norm->contiguous();
    if (slope) slope_ = slope->contiguous();
    const auto [height, width] = block_size(x, resample);
    height_ = height, width_ = width, channels_ = block_channels(x, skip);
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    for (const int64_t size : {x.size(2) * x.size(3), height * width, channels_ * 28})
      TORCH_CHECK(size < kMost, "x must have fewer than 2^31 pixels per image, before and after resampling, and fewer "
                  "than 2^26 channels on CUDA, got ", x.sizes());
    const int64_t blocks = std::max<int64_t>({block_parts(int_of(height), int_of(width)),
                                              block_head_tiles(int_of(height), int_of(width)), channels_});
    TORCH_CHECK(x.size(0) <= kMost / blocks, "x must have at most ", kMost / blocks,
                " images of that size on CUDA, got ", x.sizes());
  }

  int64_t images() const { return x_.size(0); }
  int64_t channels() const { return channels_; }
  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  const at::Tensor& x() const { return x_; }
  bool is_plain() const { return resample_ == Resample::kNone && !skip_.defined() && !changes_values(); }
  at::Tensor empty(at::IntArrayRef sizes) const { return empty(sizes, x_.scalar_type()); }
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type) const {  // [B, C, H, W] in channels-last
    return at::empty(sizes, x_.options().dtype(type).memory_format(at::MemoryFormat::ChannelsLast));
  }

  template <typename T>
  BlockView<T> view() const {
    BlockView<T> view{};
    view.x = part_of<T>(x_, 0, resample_);
    if (skip_.defined()) view.skip = part_of<T>(skip_, view.x.channels, Resample::kNone);
    if (norm_.defined()) view.norm = norm_.const_data_ptr<float>();
    if (slope_.defined()) view.slope = static_cast<const T*>(slope_.const_data_ptr());
    view.batch = images();
    view.channels = int_of(channels_), view.height = int_of(height_), view.width = int_of(width_);
    return view;
  }

 private:
  static int int_of(int64_t size) { return static_cast<int>(size); }
  bool changes_values() const { return norm_.defined() || slope_.defined(); }
  template <typename T>
  static BlockPart<T> part_of(const at::Tensor& tensor, int first, Resample resample) {
    return {static_cast<const T*>(tensor.const_data_ptr()),
            int_of(tensor.size(2)),
            int_of(tensor.size(3)),
            int_of(tensor.size(1)),
            first,
            resample};
  }

  at::Tensor x_, skip_, norm_, slope_;
  Resample resample_;
  int64_t height_, width_, channels_;
};

// Of all that follow: arguments are checked, and x's device is current.
inline at::Tensor block_norm_on_stream(const BlockTensors& block, cudaStream_t stream) {  // [2, B, C]
  const auto options = block.x().options().memory_format(at::MemoryFormat::Contiguous);
  const at::Tensor norm = at::empty({2, block.images(), block.channels()}, options.dtype(at::kFloat));
  const int64_t parts = block_parts(static_cast<int>(block.height()), static_cast<int>(block.width()));
  const at::Tensor moments =
      at::empty({block.images(), block.channels(), parts, static_cast<int64_t>(sizeof(Moments) / sizeof(double))},
                options.dtype(at::kDouble));
  with_block_type(block.x().scalar_type(), [&](auto element) {
    check_block_launch(launch_block_norm(block.view<decltype(element)>(),
                                         static_cast<Moments*>(moments.mutable_data_ptr()),
                                         norm.mutable_data_ptr<float>(), stream));
  });
  return norm;
}

inline at::Tensor block_activation_on_stream(const BlockTensors& block, cudaStream_t stream) {  // [B, C, H, W]
  const at::Tensor result = block.empty({block.images(), block.channels(), block.height(), block.width()});
  with_block_type(block.x().scalar_type(), [&](auto element) {
    using T = decltype(element);
    check_block_launch(launch_block_activation(block.view<T>(), static_cast<T*>(result.mutable_data_ptr()), stream));
  });
  return result;
}

inline at::Tensor block_head_on_stream(const BlockTensors& block,
                                       const at::Tensor& weight,  // [1, C, 5, 5]
                                       const at::Tensor& bias,    // [1]
                                       cudaStream_t stream) {     // [B, 1, H, W] float32
  const at::Tensor result = block.empty({block.images(), 1, block.height(), block.width()}, at::kFloat);
  const at::Tensor taps = weight.contiguous(), offset = bias.contiguous();
  with_block_type(block.x().scalar_type(), [&](auto element) {
    using T = decltype(element);
    check_block_launch(launch_block_head(block.view<T>(), static_cast<const T*>(taps.const_data_ptr()),
                                         static_cast<const T*>(offset.const_data_ptr()),
                                         result.mutable_data_ptr<float>(), stream));
  });
  return result;
}

inline at::Tensor block_convolution_on_stream(const BlockTensors& block,
                                              const at::Tensor& weight,  // [K, C, 5, 5]
                                              const at::Tensor& bias,    // [K]
                                              cudaStream_t stream) {     // [B, K, H, W]; float32 if K = 1
  const int64_t outputs = weight.size(0);
  if (outputs == 1 && block.channels() <= kMostHeadChannels) return block_head_on_stream(block, weight, bias, stream);
  const at::ScalarType type = outputs == 1 ? at::kFloat : block.x().scalar_type();
  if (block.images() == 0) return block.empty({0, outputs, block.height(), block.width()}, type);
  const at::AutoDispatchBelowADInplaceOrView no_gradient;  // the op has none: nothing is recorded for one
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);  // results are of x's dtype
  const at::Tensor activation = block.is_plain() ? block.x() : block_activation_on_stream(block, stream);
  const std::vector<int64_t> one{1, 1}, two{2, 2};
  return at::conv2d(activation.to(type), weight.to(type), bias.to(type), one, two, one, 1)
      .contiguous(at::MemoryFormat::ChannelsLast);
}

inline at::Tensor block_patches_on_stream(const BlockTensors& block,
                                          const at::Tensor& keypoints,  // [B, N, 2] int64
                                          cudaStream_t stream) {        // [B, N, C, 5, 5]
  const int64_t count = keypoints.size(1);
  const at::Tensor result = block.empty({block.images() * count, block.channels(), 5, 5});
  const at::Tensor xy = keypoints.contiguous();
  with_block_type(block.x().scalar_type(), [&](auto element) {
    using T = decltype(element);
    check_block_launch(launch_block_patches(block.view<T>(), xy.const_data_ptr<int64_t>(), count,
                                            static_cast<T*>(result.mutable_data_ptr()), stream));
  });
  return result.view({block.images(), count, block.channels(), 5, 5});
}

}  // namespace disk_ops
