// describe on the CPU: a convolution evaluated at keypoints only, L2-normalised, and its gradients.
//
// Patches are gathered in blocks of keypoints and slices of channels that fit the cache, and multiplied by the weight
// in register tiles. Gradients are cut so that no two threads write to one place: those of the weight by channels,
// those of the activation by image and channels, each adding up the keypoints in their given order.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../arguments.h"
#include "packing.h"

namespace disk_ops {
namespace {

constexpr int64_t kBlockRows = 48;      // keypoints at a time; a multiple of every tile's rows
constexpr int64_t kSliceColumns = 256;  // of patches: a slice has as many channels as fit, and at least one
constexpr double kEpsilon = 1e-12;      // of the norm, as in torch.nn.functional.normalize

template <typename real>
struct Operand {  // a matrix, row-major
  const real* data;
  int64_t step;  // from row to row
};

template <typename real>
struct Product {
  int64_t rows, columns;  // of a tile; sizes of products are multiples of them
  using MultiplyAdd = void (*)(Operand<real> a, Operand<real> b, int64_t rows, int64_t depth, int64_t columns,
                               real* c, int64_t c_step);
  MultiplyAdd add, add_transposed;
};

}  // namespace
}  // namespace disk_ops

#define DISK_KERNELS "describe_simd.h"
#include "instruction_sets.h"

namespace disk_ops {
namespace {

// A step between rows of at least `size` elements; 17 lines apart rather than 16, rows don't share a cache set.
int64_t row_step(int64_t size) { return round_up(size, 16) + 16; }

template <typename scalar>
struct Map {  // [B, C, H, W], any strides
  scalar* data;
  int64_t image, channel, row, column;  // strides

  static Map of(const at::Tensor& tensor, scalar* data) {
    return {data, tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)};
  }
};

struct Slice {  // channels [first, first + channels), whose patches have the given number of columns
  int64_t first, channels, columns;
};

struct Window {  // the part of the convolution's window around (x, y) that lies in the image
  int64_t x, y, left, right, top, bottom;
};

// Calls visit(place in the patch, element of the map) for each channel of a slice and pixel of a window. The order in
// the patch is that of the map in memory: pixels then channels if channels lie closest, else channels then pixels.
template <typename scalar, typename Visit>
void visit_patch(const Map<scalar>& map, int64_t image, const Window& window, const Slice& slice, int64_t size,
                 bool channels_last, const Visit& visit) {
  scalar* const origin = map.data + image * map.image + slice.first * map.channel +
                         (window.y - size / 2) * map.row + (window.x - size / 2) * map.column;
  if (channels_last) {
    for (int64_t v = window.top; v < window.bottom; ++v)
      for (int64_t u = window.left; u < window.right; ++u) {
        const int64_t place = (v * size + u) * slice.channels;
        scalar* const pixel = origin + v * map.row + u * map.column;
        if (map.channel == 1)
          for (int64_t c = 0; c < slice.channels; ++c) visit(place + c, pixel[c]);
        else
          for (int64_t c = 0; c < slice.channels; ++c) visit(place + c, pixel[c * map.channel]);
      }
    return;
  }
  for (int64_t c = 0; c < slice.channels; ++c)
    for (int64_t v = window.top; v < window.bottom; ++v) {
      const int64_t place = (c * size + v) * size;
      scalar* const line = origin + c * map.channel + v * map.row;
      for (int64_t u = window.left; u < window.right; ++u) visit(place + u, line[u * map.column]);
    }
}

template <typename scalar, typename real>
class Describe {
 public:
  Describe(const at::Tensor& activation, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& keypoints)
      : activation_(activation),
        weight_(weight.to(kReal).contiguous()),
        bias_(bias.to(kReal).contiguous()),
        keypoints_(keypoints.contiguous()),
        xy_(keypoints_.const_data_ptr<int64_t>()),
        map_(Map<const scalar>::of(activation, activation.const_data_ptr<scalar>())),
        channels_(activation.size(1)),
        height_(activation.size(2)),
        width_(activation.size(3)),
        count_(keypoints.size(1)),
        total_(keypoints.size(0) * count_),
        dimension_(weight.size(0)),
        size_(weight.size(2)),
        channels_last_(map_.channel <= map_.column),
        slice_channels_(std::max<int64_t>(1, kSliceColumns / (size_ * size_))),
        product_(choose_kernel<real>()),
        step_(row_step(round_up(slice_channels_ * size_ * size_, product_.columns))),
        output_columns_(round_up(dimension_, product_.columns)),
        output_rows_(round_up(dimension_, product_.rows)),
        output_step_(row_step(std::max(output_columns_, output_rows_))) {
    check_inside(keypoints_, height_, width_);
  }

  at::Tensor forward() const {
    auto result = at::empty({activation_.size(0), count_, dimension_}, activation_.options());
    auto* descriptors = result.template mutable_data_ptr<scalar>();
    project([&](int64_t keypoint, real* output) {
      const real scale = 1 / std::max(norm(output), static_cast<real>(kEpsilon));
      for (int64_t d = 0; d < dimension_; ++d)
        descriptors[keypoint * dimension_ + d] = static_cast<scalar>(output[d] * scale);
    });
    return result;
  }

  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad) const {  // [B, N, D]
    const std::vector<real> output_grad = gradient_of_outputs(grad.contiguous());
    return {gradient_of_activation(output_grad), gradient_of_weight(output_grad), gradient_of_bias(output_grad)};
  }

 private:
  static constexpr at::ScalarType kReal = std::is_same_v<real, double> ? at::kDouble : at::kFloat;

  int64_t slices() const { return (channels_ + slice_channels_ - 1) / slice_channels_; }
  int64_t blocks() const { return (total_ + kBlockRows - 1) / kBlockRows; }

  Slice slice(int64_t s) const {
    const int64_t first = s * slice_channels_, channels = std::min(slice_channels_, channels_ - first);
    return {first, channels, channels * size_ * size_};
  }

  Window window(int64_t keypoint) const {
    const int64_t x = xy_[2 * keypoint], y = xy_[2 * keypoint + 1], radius = size_ / 2;
    return {x, y, std::max<int64_t>(0, radius - x), std::min(size_, width_ + radius - x),
            std::max<int64_t>(0, radius - y), std::min(size_, height_ + radius - y)};
  }

  // Where an element of a patch stands in the weight: [D, C, k, k].
  int64_t weight_index(int64_t d, const Slice& slice, int64_t place) const {
    const int64_t pixels = size_ * size_;
    const int64_t c = channels_last_ ? place % slice.channels : place / pixels;
    const int64_t pixel = channels_last_ ? place / slice.channels : place % pixels;
    return (d * channels_ + slice.first + c) * pixels + pixel;
  }

  void gather(int64_t first, int64_t count, const Slice& slice, real* patches) const {  // [count, step]
    for (int64_t i = 0; i < count; ++i) {
      const Window inside = window(first + i);
      real* const patch = patches + i * step_;
      const bool whole = inside.right - inside.left == size_ && inside.bottom - inside.top == size_;
      if (!whole) std::fill_n(patch, slice.columns, real(0));
      visit_patch(map_, (first + i) / count_, inside, slice, size_, channels_last_,
                  [&](int64_t place, const scalar& value) { patch[place] = static_cast<real>(value); });
    }
  }

  // The weight of a slice with patches in rows: [columns of the slice, output_step].
  std::vector<real> packed_weight() const {
    const real* weight = weight_.template const_data_ptr<real>();
    std::vector<real> packed(channels_ * size_ * size_ * output_step_);
    at::parallel_for(0, slices(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        const Slice part = slice(s);
        real* to = packed.data() + part.first * size_ * size_ * output_step_;
        for (int64_t place = 0; place < part.columns; ++place, to += output_step_)
          for (int64_t d = 0, from = weight_index(0, part, place); d < dimension_; ++d)
            to[d] = weight[from + d * channels_ * size_ * size_];
      }
    });
    return packed;
  }

  // The convolution at each keypoint, handed to finish(keypoint, output [D]).
  template <typename Finish>
  void project(const Finish& finish) const {
    const std::vector<real> weight = packed_weight();
    const real* bias = bias_.template const_data_ptr<real>();
    at::parallel_for(0, blocks(), 1, [&](int64_t begin, int64_t end) {
      std::vector<real> patches(kBlockRows * step_), output(kBlockRows * output_step_);
      for (int64_t first = begin * kBlockRows; first < std::min(total_, end * kBlockRows); first += kBlockRows) {
        const int64_t count = std::min(kBlockRows, total_ - first);
        std::fill(output.begin(), output.end(), real(0));
        for (int64_t s = 0; s < slices(); ++s) {
          const Slice part = slice(s);
          gather(first, count, part, patches.data());
          product_.add({patches.data(), step_},
                       {weight.data() + part.first * size_ * size_ * output_step_, output_step_},
                       round_up(count, product_.rows), part.columns, output_columns_, output.data(), output_step_);
        }
        for (int64_t i = 0; i < count; ++i) {
          real* const mine = output.data() + i * output_step_;
          for (int64_t d = 0; d < dimension_; ++d) mine[d] += bias[d];
          finish(first + i, mine);
        }
      }
    });
  }

  real norm(const real* output) const {  // [D]
    double squares = 0;
    for (int64_t d = 0; d < dimension_; ++d) squares += static_cast<double>(output[d]) * static_cast<double>(output[d]);
    return static_cast<real>(std::sqrt(squares));
  }

  // Through the normalisation: [total (and a tile more), output_step].
  std::vector<real> gradient_of_outputs(const at::Tensor& grad) const {  // [B, N, D], contiguous
    std::vector<real> result((total_ + product_.rows) * output_step_);
    const auto* grads = grad.template const_data_ptr<scalar>();
    project([&](int64_t keypoint, const real* output) {
      const scalar* const from = grads + keypoint * dimension_;
      real* const to = result.data() + keypoint * output_step_;
      const real length = norm(output), scale = 1 / std::max(length, static_cast<real>(kEpsilon));
      double along = 0;  // shorter than epsilon, the output is scaled by a constant
      if (length >= static_cast<real>(kEpsilon))
        for (int64_t d = 0; d < dimension_; ++d)
          along += static_cast<double>(static_cast<real>(from[d])) * static_cast<double>(output[d] * scale);
      for (int64_t d = 0; d < dimension_; ++d)
        to[d] = (static_cast<real>(from[d]) - output[d] * scale * static_cast<real>(along)) * scale;
    });
    return result;
  }

  at::Tensor gradient_of_bias(const std::vector<real>& output_grad) const {
    std::vector<double> sum(dimension_);
    for (int64_t i = 0; i < total_; ++i)
      for (int64_t d = 0; d < dimension_; ++d) sum[d] += static_cast<double>(output_grad[i * output_step_ + d]);
    auto result = at::empty({dimension_}, activation_.options());
    std::copy(sum.begin(), sum.end(), result.template mutable_data_ptr<scalar>());
    return result;
  }

  at::Tensor gradient_of_weight(const std::vector<real>& output_grad) const {
    auto result = at::empty_like(weight_);
    real* const grads = result.template mutable_data_ptr<real>();
    at::parallel_for(0, slices(), 1, [&](int64_t begin, int64_t end) {
      std::vector<real> patches(kBlockRows * step_), sum(output_rows_ * step_);
      for (int64_t s = begin; s < end; ++s) {
        const Slice part = slice(s);
        std::fill(sum.begin(), sum.end(), real(0));
        for (int64_t first = 0; first < total_; first += kBlockRows) {
          const int64_t count = std::min(kBlockRows, total_ - first);
          gather(first, count, part, patches.data());
          product_.add_transposed({output_grad.data() + first * output_step_, output_step_}, {patches.data(), step_},
                                  output_rows_, count, round_up(part.columns, product_.columns), sum.data(), step_);
        }
        for (int64_t d = 0; d < dimension_; ++d)
          for (int64_t place = 0; place < part.columns; ++place)
            grads[weight_index(d, part, place)] = sum[d * step_ + place];
      }
    });
    return result;
  }

  at::Tensor gradient_of_activation(const std::vector<real>& output_grad) const {
    auto result = at::zeros_like(activation_, activation_.options().dtype(kReal));
    const auto map = Map<real>::of(result, result.template mutable_data_ptr<real>());
    at::parallel_for(0, count_ == 0 ? 0 : activation_.size(0) * slices(), 1, [&](int64_t begin, int64_t end) {
      std::vector<real> weight(dimension_ * step_), patches(kBlockRows * step_);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t image = task / slices(), end_of_image = (image + 1) * count_;
        const Slice part = slice(task % slices());
        pack_weight_of(part, weight.data());
        for (int64_t first = image * count_; first < end_of_image; first += kBlockRows) {
          const int64_t count = std::min(kBlockRows, end_of_image - first);
          std::fill(patches.begin(), patches.end(), real(0));
          product_.add({output_grad.data() + first * output_step_, output_step_}, {weight.data(), step_},
                       round_up(count, product_.rows), dimension_, round_up(part.columns, product_.columns),
                       patches.data(), step_);
          for (int64_t i = 0; i < count; ++i)
            visit_patch(map, image, window(first + i), part, size_, channels_last_,
                        [patch = patches.data() + i * step_](int64_t place, real& sum) { sum += patch[place]; });
        }
      }
    });
    return result.to(activation_.scalar_type());
  }

  void pack_weight_of(const Slice& part, real* to) const {  // [D, step]
    const real* weight = weight_.template const_data_ptr<real>();
    for (int64_t place = 0; place < part.columns; ++place)
      for (int64_t d = 0, from = weight_index(0, part, place); d < dimension_; ++d)
        to[d * step_ + place] = weight[from + d * channels_ * size_ * size_];
  }

  const at::Tensor activation_, weight_, bias_, keypoints_;
  const int64_t* xy_;  // [B, N, 2]
  const Map<const scalar> map_;
  const int64_t channels_, height_, width_, count_, total_, dimension_, size_;
  const bool channels_last_;
  const int64_t slice_channels_;
  const Product<real> product_;
  const int64_t step_;  // of patches
  const int64_t output_columns_, output_rows_, output_step_;
};

template <typename Use>
auto with_type(at::ScalarType type, const Use& use) {
  switch (type) {
    case at::kFloat: return use(float{}, float{});
    case at::kDouble: return use(double{}, double{});
    case at::kHalf: return use(at::Half{}, float{});
    default: return use(at::BFloat16{}, float{});
  }
}

at::Tensor describe(const at::Tensor& activation,   // [B, C, H, W]
                    const at::Tensor& weight,       // [D, C, k, k]
                    const at::Tensor& bias,         // [D]
                    const at::Tensor& keypoints) {  // [B, N, 2] int64 xy
  check_describe(activation, weight, bias, keypoints);
  return with_type(activation.scalar_type(), [&](auto scalar, auto real) {
    return Describe<decltype(scalar), decltype(real)>(activation, weight, bias, keypoints).forward();
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> describe_backward(const at::Tensor& grad,         // [B, N, D]
                                                                 const at::Tensor& activation,   // [B, C, H, W]
                                                                 const at::Tensor& weight,       // [D, C, k, k]
                                                                 const at::Tensor& bias,         // [D]
                                                                 const at::Tensor& keypoints) {  // [B, N, 2]
  check_describe(activation, weight, bias, keypoints);
  check_describe_grad(grad, activation, weight, keypoints);
  auto [grad_activation, grad_weight, grad_bias] =
      with_type(activation.scalar_type(), [&](auto scalar, auto real) {
        return Describe<decltype(scalar), decltype(real)>(activation, weight, bias, keypoints).backward(grad);
      });
  return {grad_activation, at::empty_like(weight).copy_(grad_weight), grad_bias};
}

}  // namespace

TORCH_LIBRARY_IMPL(disk_ops, CPU, m) {
  m.impl("describe", &describe);
  m.impl("_describe_backward", &describe_backward);
}

}  // namespace disk_ops
