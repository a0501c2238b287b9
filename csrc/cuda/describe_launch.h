// describe on tensors: gathers patches in blocks of bounded memory, multiplies them by ATen, normalises, scatters.
// Shared by the CUDA glue and the emulated op of the tests, where the products are those of the CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>

#include "../arguments.h"
#include "describe_kernel.h"
#include "element_type.h"

namespace disk_ops {

constexpr int64_t kPatchNumbers = 1 << 24;  // that exist at a time: 64 MiB of floats

inline void check_describe_launch(cudaError_t error) {
  TORCH_CHECK(error == cudaSuccess, "describe failed to launch: ", cudaGetErrorString(error));
}

template <typename T>
class DescribeOnStream {
 public:
  DescribeOnStream(const at::Tensor& activation,  // [B, C, H, W]
                   const at::Tensor& weight,      // [D, C, k, k]
                   const at::Tensor& bias,        // [D]
                   const at::Tensor& keypoints,   // [B, N, 2] int64
                   int64_t patch_numbers, cudaStream_t stream)
      : activation_(activation),
        bias_(bias.contiguous()),
        channels_last_(activation.stride(1) <= activation.stride(3)),
        depth_(weight.size(0)),
        size_(weight.size(2)),
        columns_(weight.size(1) * size_ * size_),
        rows_(keypoints.size(0) * keypoints.size(1)),
        block_(std::max<int64_t>(1, std::min(rows_, patch_numbers / std::max<int64_t>(columns_, 1)))),
        stream_(stream),
        numbers_(activation.options().dtype(sizeof(computing<T>) == sizeof(double) ? at::kDouble : at::kFloat)) {
    auto ordered = channels_last_ ? weight.permute({0, 2, 3, 1}) : weight;
    weight_ = ordered.to(numbers_.dtype()).reshape({depth_, columns_});
    pixels_ = at::empty({rows_}, keypoints.options());
    const auto xy = keypoints.contiguous();
    check_describe_launch(launch_pixels(xy.const_data_ptr<int64_t>(), xy.size(0), xy.size(1),
                                        static_cast<int>(activation.size(2)), static_cast<int>(activation.size(3)),
                                        pixels_.mutable_data_ptr<int64_t>(), stream));
  }

  at::Tensor forward(int64_t batch, int64_t count) const {
    auto result = at::empty({batch, count, depth_}, activation_.options());
    auto outputs = at::empty({rows_, depth_}, numbers_), patches = empty_patches();
    for (int64_t first = 0; first < rows_; first += block_) convolve(pixels_, first, patches, outputs);
    check_describe_launch(launch_normalize<T>(numbers_of(outputs), elements_of(bias_), rows_, static_cast<int>(depth_),
                                              static_cast<T*>(result.mutable_data_ptr()), stream_));
    return result;
  }

  // Keypoints are taken in the order of their pixels, so that a place's patches are easy to find.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad,            // [B, N, D]
                                                          const at::Tensor& weight) const {  // [D, C, k, k]
    auto grad_activation = at::zeros_like(activation_);
    auto grad_weight = at::zeros({depth_, columns_}, numbers_), grad_bias = at::zeros({depth_}, numbers_);
    const auto given = grad.contiguous();
    const auto [pixels, order] = pixels_.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
    auto outputs = at::empty({block_, depth_}, numbers_), patches = empty_patches();
    for (int64_t first = 0; first < rows_; first += block_) {
      const int64_t rows = std::min(block_, rows_ - first);
      convolve(pixels.narrow(0, first, rows), 0, patches, outputs);
      check_describe_launch(launch_normalize_backward<T>(
          elements_of(given), order.template const_data_ptr<int64_t>() + first, elements_of(bias_), rows,
          static_cast<int>(depth_), static_cast<computing<T>*>(outputs.mutable_data_ptr()), stream_));
      const auto output_grad = outputs.narrow(0, 0, rows);
      auto block = patches.narrow(0, 0, rows);
      grad_bias += output_grad.sum(0);
      grad_weight.addmm_(output_grad.t(), block);
      at::mm_out(block, output_grad, weight_);
      check_describe_launch(launch_scatter_patches<T>(
          numbers_of(block), pixels.template const_data_ptr<int64_t>() + first, rows,
          map_of<T>(grad_activation, static_cast<T*>(grad_activation.mutable_data_ptr())), stream_));
    }
    return {grad_activation, at::empty_like(weight).copy_(as_weight(grad_weight)), grad_bias.to(bias_.scalar_type())};
  }

 private:
  at::Tensor empty_patches() const { return at::empty({block_, columns_}, numbers_); }

  static const T* elements_of(const at::Tensor& tensor) { return static_cast<const T*>(tensor.const_data_ptr()); }
  static const computing<T>* numbers_of(const at::Tensor& tensor) {
    return static_cast<const computing<T>*>(tensor.const_data_ptr());
  }

  template <typename E>
  PatchedMap<E> map_of(const at::Tensor& map, E* data) const {  // [B, C, H, W]
    return {data,
            map.stride(0),
            map.stride(1),
            map.stride(2),
            map.stride(3),
            static_cast<int>(map.size(1)),
            static_cast<int>(map.size(2)),
            static_cast<int>(map.size(3)),
            static_cast<int>(size_),
            channels_last_};
  }

  // The convolution without bias at one block of pixels.
  void convolve(const at::Tensor& pixels, int64_t first, at::Tensor& patches, at::Tensor& outputs) const {
    const int64_t rows = std::min(block_, pixels.size(0) - first);
    auto block = patches.narrow(0, 0, rows), output = outputs.narrow(0, first, rows);
    check_describe_launch(launch_gather_patches<T>(
        map_of<const T>(activation_, elements_of(activation_)), pixels.const_data_ptr<int64_t>() + first, rows,
        static_cast<computing<T>*>(block.mutable_data_ptr()), stream_));
    at::mm_out(output, block, weight_.t());
  }

  at::Tensor as_weight(const at::Tensor& matrix) const {  // [D, C k²]
    const int64_t channels = activation_.size(1);
    return channels_last_ ? matrix.view({depth_, size_, size_, channels}).permute({0, 3, 1, 2})
                          : matrix.view({depth_, channels, size_, size_});
  }

  const at::Tensor activation_, bias_;
  const bool channels_last_;
  const int64_t depth_, size_, columns_, rows_, block_;
  const cudaStream_t stream_;
  const at::TensorOptions numbers_;  // of what is computed in
  at::Tensor weight_;                // [D, C k²]
  at::Tensor pixels_;                // [B N]
};

inline void check_describe_sizes(const at::Tensor& activation, const at::Tensor& weight) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  for (int64_t dim = 1; dim < 4; ++dim)
    TORCH_CHECK(activation.size(dim) < kMost, "activation must have sizes below 2^31, got ", activation.sizes());
  TORCH_CHECK(activation.size(2) * activation.size(3) < kMost,
              "activation must have fewer than 2^31 pixels per image, got ", activation.sizes());
  TORCH_CHECK(weight.numel() < kMost, "weight must have fewer than 2^31 elements, got ", weight.sizes());
}

// Arguments are checked, and the activation's device is current.
inline at::Tensor describe_on_stream(const at::Tensor& activation,  // [B, C, H, W]
                                     const at::Tensor& weight,      // [D, C, k, k]
                                     const at::Tensor& bias,        // [D]
                                     const at::Tensor& keypoints,   // [B, N, 2] int64
                                     int64_t patch_numbers, cudaStream_t stream) {
  check_describe_sizes(activation, weight);
  return with_element_type(activation.scalar_type(), [&](auto element) {
    return DescribeOnStream<decltype(element)>(activation, weight, bias, keypoints, patch_numbers, stream)
        .forward(keypoints.size(0), keypoints.size(1));
  });
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> describe_backward_on_stream(
    const at::Tensor& grad,        // [B, N, D]
    const at::Tensor& activation,  // [B, C, H, W]
    const at::Tensor& weight,      // [D, C, k, k]
    const at::Tensor& bias,        // [D]
    const at::Tensor& keypoints,   // [B, N, 2] int64
    int64_t patch_numbers, cudaStream_t stream) {
  check_describe_sizes(activation, weight);
  return with_element_type(activation.scalar_type(), [&](auto element) {
    return DescribeOnStream<decltype(element)>(activation, weight, bias, keypoints, patch_numbers, stream)
        .backward(grad, weight);
  });
}

}  // namespace disk_ops
