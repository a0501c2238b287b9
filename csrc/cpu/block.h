// The tensors of a block of the U-Net as what its kernels read.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "../block_arguments.h"
#include "block_input.h"

namespace disk_ops {

// The kernels take so many channels at once, whatever the instruction set, so that all are right or all refuse.
inline constexpr int64_t kMostLanes = 16;

inline void check_lanes(const at::Tensor& x, const std::optional<at::Tensor>& skip) {
  TORCH_CHECK_VALUE(x.size(1) % kMostLanes == 0, "x must have a multiple of ", kMostLanes, " channels, got ", x.sizes());
  TORCH_CHECK_VALUE(!skip || skip->size(1) % kMostLanes == 0, "skip must have a multiple of ", kMostLanes,
                    " channels, got ", skip ? skip->sizes() : at::IntArrayRef());
}

inline Resample resample_of(std::string_view name) {
  return name == "pool" ? Resample::kPool : name == "up" ? Resample::kUp : Resample::kNone;
}

// The tensor itself if the pixels of each row lie one after another, as in a part of an image that is in channels-last;
// else a copy.
inline at::Tensor with_dense_rows(const at::Tensor& x) {  // [B, C, H, W]
  const bool dense = x.stride(1) == 1 && (x.size(3) == 1 || x.stride(3) == x.size(1));
  return dense ? x : x.contiguous(at::MemoryFormat::ChannelsLast);
}

template <typename T>  // of x and skip
class Block {
 public:
  Block(const at::Tensor& x,                    // [B, C1, h, w]
        const std::optional<at::Tensor>& skip,   // [B, C2, H, W]
        const std::optional<at::Tensor>& norm,   // [2, B, C1 + C2]
        const std::optional<at::Tensor>& slope,  // [C1 + C2]
        std::string_view resample)
      : x_(with_dense_rows(x)), resample_(resample_of(resample)) {
    if (skip) skip_ = with_dense_rows(*skip);
    if (norm) norm_ = norm->contiguous();
    if (slope) slope_ = slope->to(at::kFloat).contiguous();
    const int64_t h = x.size(2), w = x.size(3);
    const auto [height, width] = block_size(x, resample);
    first_ = {x_.const_data_ptr<T>(),
              skip ? skip_.const_data_ptr<T>() : nullptr,
              h,
              w,
              x.size(1),
              skip ? skip->size(1) : 0,
              x_.stride(2),
              skip ? skip_.stride(2) : 0,
              height,
              width,
              nullptr,
              nullptr,
              slope ? slope_.const_data_ptr<float>() : nullptr};
  }

  int64_t images() const { return x_.size(0); }
  at::ScalarType type() const { return x_.scalar_type(); }
  int64_t channels() const { return first_.x_channels + first_.skip_channels; }
  int64_t height() const { return first_.height; }
  int64_t width() const { return first_.width; }
  int resample() const { return static_cast<int>(resample_); }

  BlockInput<T> image(int64_t i) const {
    BlockInput<T> input = first_;
    input.x += i * x_.stride(0);
    if (input.skip != nullptr) input.skip += i * skip_.stride(0);
    if (norm_.defined()) {
      input.mean = norm_.const_data_ptr<float>() + i * channels();
      input.factor = input.mean + images() * channels();
    }
    return input;
  }

 private:
  at::Tensor x_, skip_, norm_, slope_;
  Resample resample_;
  BlockInput<T> first_{};
};

// Calls use(T{}) with T the type of x, which check_block knows.
template <typename Use>
auto with_block_type(const at::Tensor& x, const Use& use) {
  switch (x.scalar_type()) {
    case at::kHalf: return use(at::Half{});
    case at::kBFloat16: return use(at::BFloat16{});
    default: return use(float{});
  }
}

}  // namespace disk_ops
