// sample_grid on the CPU: a row of cells at a time, in scratch memory that stays in the cache.
//
// Logits are read once. The exponentials, nearly all of the work, run over contiguous rows; what is done once for each
// cell or for each of its rows is scalar.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "../sampling_arguments.h"
#include "simd.h"

namespace disk_ops {
namespace {

// weight[i] = exp(value[i] - highest[i])
template <typename real>
using Weigh = void (*)(real* weight, const real* value, const real* highest, int64_t size);

}  // namespace
}  // namespace disk_ops

#define DISK_KERNELS "sample_grid_simd.h"
#include "instruction_sets.h"

namespace disk_ops {
namespace {

constexpr int64_t kPixelsPerTask = 1 << 14;  // at least, or starting a thread would take longer than its work

struct Grid {
  int64_t batch, height, width, cell, rows, columns;  // cells in a column and in a row of the image
};

Grid grid_of(const at::Tensor& heatmap, int64_t cell) {  // [B, 1, H, W]
  const int64_t height = heatmap.size(2), width = heatmap.size(3);
  return {heatmap.size(0), height, width, cell, cells_along(height, cell), cells_along(width, cell)};
}

template <typename scalar>
struct Image {
  const scalar* heatmap;  // [H, W], strided
  int64_t row_stride, column_stride;
  const bool* mask;  // [H, W], strided, or null
  int64_t mask_row_stride, mask_column_stride;
};

template <typename scalar>
Image<scalar> image_of(const at::Tensor& heatmap, const std::optional<at::Tensor>& mask, int64_t b) {
  Image<scalar> image{heatmap.const_data_ptr<scalar>() + b * heatmap.stride(0), heatmap.stride(2), heatmap.stride(3),
                      nullptr, 0, 0};
  if (mask) {
    image.mask = mask->const_data_ptr<bool>() + b * mask->stride(0);
    image.mask_row_stride = mask->stride(2), image.mask_column_stride = mask->stride(3);
  }
  return image;
}

template <typename scalar, typename real>
DISK_CLONE_FOR_SIMD void load_contiguous(real* to, const scalar* from, int64_t size) {
  for (int64_t i = 0; i < size; ++i) to[i] = usable_logit(static_cast<real>(from[i]));
}

template <typename real>
DISK_CLONE_FOR_SIMD void raise_to(real* highest, const real* value, int64_t size) {
  for (int64_t i = 0; i < size; ++i) highest[i] = highest[i] < value[i] ? value[i] : highest[i];
}

// sum[c] = the sum of the c-th `cell` weights, from left to right. The common widths are unrolled.
template <int kCell, typename real>
void add_rows(real* sum, const real* weight, int64_t size, int64_t cell) {
  if constexpr (kCell != 0) cell = kCell;
  int64_t first = 0;
  for (; first + cell <= size; first += cell) {
    real total = weight[first];
    for (int64_t i = 1; i < cell; ++i) total += weight[first + i];
    *sum++ = total;
  }
  if (first == size) return;
  real total = weight[first];
  for (int64_t i = first + 1; i < size; ++i) total += weight[i];
  *sum = total;
}

template <typename real>
DISK_CLONE_FOR_SIMD void draw_uniforms(real* proposal, real* acceptance, int64_t size, uint64_t seed, uint32_t first,
                                       uint32_t image) {
  for (int64_t i = 0; i < size; ++i) {
    const Uniforms<real> uniforms = uniforms_of<real>(seed, first + static_cast<uint32_t>(i), image);
    proposal[i] = uniforms.proposal, acceptance[i] = uniforms.acceptance;
  }
}

template <typename scalar, typename real>
DISK_CLONE_FOR_SIMD void write_gradient(scalar* to, const real* weight, const real* scale, int64_t size) {
  for (int64_t i = 0; i < size; ++i) to[i] = static_cast<scalar>(-scale[i] * weight[i]);
}

// The logits, weights and sums of a row of cells.
template <typename scalar, typename real>
class Strip {
 public:
  explicit Strip(const Grid& grid)
      : grid_(grid),
        weigh_(choose_kernel<real>()),
        values_(std::min(grid.cell, grid.height) * grid.width),
        weights_(values_.size()),
        highest_(grid.width),
        per_pixel_(grid.width),
        sums_(std::min(grid.cell, grid.height) * grid.columns),
        uniforms_(2 * grid.columns) {}

  void read(const Image<scalar>& image, int64_t cell_row) {
    first_ = cell_row * grid_.cell, rows_ = std::min(grid_.cell, grid_.height - first_);
    const int64_t width = grid_.width;
    for (int64_t row = 0; row < rows_; ++row) {
      real* const value = values_.data() + row * width;
      load(value, image, first_ + row);
      if (row == 0)
        std::copy_n(value, width, highest_.data());
      else
        raise_to(highest_.data(), value, width);
    }
    for (int64_t left = 0; left < width; left += grid_.cell) {
      const auto begin = highest_.begin() + left, end = highest_.begin() + std::min(left + grid_.cell, width);
      const real highest = *std::max_element(begin, end);
      // Of a cell without pixels to propose: any finite number, for then all weights are 0.
      std::fill(begin, end, highest == -std::numeric_limits<real>::infinity() ? real(0) : highest);
    }
    for (int64_t row = 0; row < rows_; ++row) {
      real* const weight = weights_.data() + row * width;
      weigh_(weight, values_.data() + row * width, highest_.data(), width);
      real* const sum = sums_.data() + row * grid_.columns;
      switch (grid_.cell) {
        case 4: add_rows<4>(sum, weight, width, 4); break;
        case 8: add_rows<8>(sum, weight, width, 8); break;
        default: add_rows<0>(sum, weight, width, grid_.cell);
      }
    }
  }

  void draw(uint64_t seed, bool argmax, int64_t image, int64_t cell_row,
            int64_t* keypoints,  // [w, 2] of the row of cells
            bool* accepted,      // [w]
            real* logp) {        // [w]
    const int64_t columns = grid_.columns;
    if (!argmax)
      draw_uniforms(uniforms_.data(), uniforms_.data() + columns, columns, seed,
                    static_cast<uint32_t>(cell_row * columns), static_cast<uint32_t>(image));
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t left = column * grid_.cell;
      const real total = total_of(column), highest = highest_[left];
      int64_t x = left, y = 0;
      accepted[column] = false, logp[column] = 0;
      if (total > 0) {
        if (argmax)
          find_highest(column, x, y);
        else
          propose(column, proposal_threshold(uniforms_[column], total), x, y);
        const real logit = values_[y * grid_.width + x];
        accepted[column] = argmax ? logit > 0 : is_accepted(uniforms_[columns + column], logit);
        logp[column] = log_probability(logit, highest, total, accepted[column]);
      }
      keypoints[2 * column] = x, keypoints[2 * column + 1] = first_ + y;
    }
  }

  void write_gradients(const real* grad_logp,     // [w] of the row of cells
                       const int64_t* keypoints,  // [w, 2]
                       const bool* accepted,      // [w]
                       scalar* grad) {            // [H, W] contiguous
    const int64_t width = grid_.width;
    for (int64_t column = 0; column < grid_.columns; ++column) {
      const int64_t left = column * grid_.cell, right = std::min(left + grid_.cell, width);
      const real total = total_of(column);
      std::fill(per_pixel_.begin() + left, per_pixel_.begin() + right, total > 0 ? grad_logp[column] / total : real(0));
    }
    for (int64_t row = 0; row < rows_; ++row)
      write_gradient(grad + (first_ + row) * width, weights_.data() + row * width, per_pixel_.data(), width);
    for (int64_t column = 0; column < grid_.columns; ++column) {
      const int64_t left = column * grid_.cell, x = keypoints[2 * column], y = keypoints[2 * column + 1] - first_;
      if (x < left || x >= std::min(left + grid_.cell, width) || y < 0 || y >= rows_) continue;
      const int64_t pixel = y * width + x;
      if (weights_[pixel] == 0) continue;  // nothing was proposed
      const real softmax = per_pixel_[x] * weights_[pixel];
      grad[first_ * width + pixel] =
          static_cast<scalar>(grad_logp[column] * own_slope(values_[pixel], accepted[column]) - softmax);
    }
  }

 private:
  void load(real* to, const Image<scalar>& image, int64_t y) const {
    const scalar* const from = image.heatmap + y * image.row_stride;
    if (image.column_stride == 1) {
      load_contiguous(to, from, grid_.width);
    } else {
      for (int64_t x = 0; x < grid_.width; ++x)
        to[x] = usable_logit(static_cast<real>(from[x * image.column_stride]));
    }
    if (image.mask == nullptr) return;
    const bool* const keep = image.mask + y * image.mask_row_stride;
    for (int64_t x = 0; x < grid_.width; ++x)
      if (!keep[x * image.mask_column_stride]) to[x] = -std::numeric_limits<real>::infinity();
  }

  real total_of(int64_t column) const {
    real total = sums_[column];
    for (int64_t row = 1; row < rows_; ++row) total += sums_[row * grid_.columns + column];
    return total;
  }

  // The first pixel at which the sum of weights passes the threshold; y within the strip.
  void propose(int64_t column, real threshold, int64_t& x, int64_t& y) const {
    real before = 0, after = sums_[column];
    while (!(after > threshold) && y + 1 < rows_) {
      before = after;
      after += sums_[++y * grid_.columns + column];
    }
    const int64_t last = std::min(x + grid_.cell, grid_.width) - 1;
    const real* const weight = weights_.data() + y * grid_.width;
    for (real sum = weight[x]; !(before + sum > threshold) && x < last; sum += weight[x]) ++x;
  }

  void find_highest(int64_t column, int64_t& x, int64_t& y) const {
    const int64_t left = column * grid_.cell, right = std::min(left + grid_.cell, grid_.width);
    for (y = 0; y < rows_; ++y)
      for (x = left; x < right; ++x)
        if (values_[y * grid_.width + x] == highest_[x]) return;
  }

  const Grid& grid_;
  const Weigh<real> weigh_;
  int64_t first_ = 0, rows_ = 0;  // pixel rows
  std::vector<real> values_;      // [cell, W], -inf where masked or NaN
  std::vector<real> weights_;     // [cell, W]
  std::vector<real> highest_;     // [W] of each pixel's cell
  std::vector<real> per_pixel_;   // [W]
  std::vector<real> sums_;        // [cell, w] of each row of each cell
  std::vector<real> uniforms_;    // [2, w] for proposals and acceptances
};

// Calls work(strip, image, row of cells) for all rows of cells.
template <typename scalar, typename real, typename Work>
void for_each_strip(const at::Tensor& heatmap, const std::optional<at::Tensor>& mask, const Grid& grid,
                    const Work& work) {
  if (heatmap.numel() == 0) return;
  const int64_t grain = std::max<int64_t>(1, kPixelsPerTask / (grid.cell * grid.width));
  at::parallel_for(0, grid.batch * grid.rows, grain, [&](int64_t begin, int64_t end) {
    Strip<scalar, real> strip(grid);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / grid.rows, cell_row = task % grid.rows;
      strip.read(image_of<scalar>(heatmap, mask, b), cell_row);
      work(strip, b, cell_row);
    }
  });
}

using Samples = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

template <typename scalar, typename real>
Samples sample_typed(const at::Tensor& heatmap, int64_t cell, uint64_t seed, bool argmax,
                     const std::optional<at::Tensor>& mask) {
  const Grid grid = grid_of(heatmap, cell);
  const auto options = heatmap.options();
  const at::Tensor keypoints = at::empty({grid.batch, grid.rows, grid.columns, 2}, options.dtype(at::kLong));
  const at::Tensor accepted = at::empty({grid.batch, grid.rows, grid.columns}, options.dtype(at::kBool));
  const at::Tensor logp = at::empty({grid.batch, grid.rows, grid.columns}, options.dtype(logp_dtype(heatmap)));
  auto* const xy = keypoints.mutable_data_ptr<int64_t>();
  auto* const is_accepted = accepted.mutable_data_ptr<bool>();
  auto* const log = logp.mutable_data_ptr<real>();
  for_each_strip<scalar, real>(heatmap, mask, grid, [&](Strip<scalar, real>& strip, int64_t b, int64_t cell_row) {
    const int64_t first = (b * grid.rows + cell_row) * grid.columns;
    strip.draw(seed, argmax, b, cell_row, xy + 2 * first, is_accepted + first, log + first);
  });
  return {keypoints, accepted, logp};
}

template <typename scalar, typename real>
at::Tensor backward_typed(const at::Tensor& grad_logp, const at::Tensor& heatmap, int64_t cell,
                          const at::Tensor& keypoints, const at::Tensor& accepted,
                          const std::optional<at::Tensor>& mask) {
  const Grid grid = grid_of(heatmap, cell);
  const at::Tensor grad = at::empty(heatmap.sizes(), heatmap.options());
  auto* const to = grad.mutable_data_ptr<scalar>();
  const auto* const from = grad_logp.const_data_ptr<real>();
  const auto* const xy = keypoints.const_data_ptr<int64_t>();
  const auto* const is_accepted = accepted.const_data_ptr<bool>();
  for_each_strip<scalar, real>(heatmap, mask, grid, [&](Strip<scalar, real>& strip, int64_t b, int64_t cell_row) {
    const int64_t first = (b * grid.rows + cell_row) * grid.columns;
    strip.write_gradients(from + first, xy + 2 * first, is_accepted + first, to + b * grid.height * grid.width);
  });
  return grad;
}

Samples sample_grid(const at::Tensor& heatmap,  // [B, 1, H, W]
                    int64_t cell,
                    const at::Tensor& seed,                   // [] int64 on the CPU
                    bool argmax,                              //
                    const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] bool
  check_grid(heatmap, cell, mask);
  const uint64_t key = checked_seed(seed);
  switch (heatmap.scalar_type()) {
    case at::kFloat: return sample_typed<float, float>(heatmap, cell, key, argmax, mask);
    case at::kDouble: return sample_typed<double, double>(heatmap, cell, key, argmax, mask);
    case at::kHalf: return sample_typed<at::Half, float>(heatmap, cell, key, argmax, mask);
    default: return sample_typed<at::BFloat16, float>(heatmap, cell, key, argmax, mask);
  }
}

at::Tensor sample_grid_backward(const at::Tensor& grad_logp,  // [B, h, w]
                                const at::Tensor& heatmap,    // [B, 1, H, W]
                                int64_t cell,
                                const at::Tensor& keypoints,              // [B, h, w, 2] int64
                                const at::Tensor& accepted,               // [B, h, w] bool
                                const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] bool
  check_grid(heatmap, cell, mask);
  check_drawn(grad_logp, heatmap, cell, keypoints, accepted);
  const at::Tensor grad = grad_logp.contiguous(), xy = keypoints.contiguous(), kept = accepted.contiguous();
  switch (heatmap.scalar_type()) {
    case at::kFloat: return backward_typed<float, float>(grad, heatmap, cell, xy, kept, mask);
    case at::kDouble: return backward_typed<double, double>(grad, heatmap, cell, xy, kept, mask);
    case at::kHalf: return backward_typed<at::Half, float>(grad, heatmap, cell, xy, kept, mask);
    default: return backward_typed<at::BFloat16, float>(grad, heatmap, cell, xy, kept, mask);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(disk_ops, CPU, m) {
  m.impl("sample_grid", &sample_grid);
  m.impl("_sample_grid_backward", &sample_grid_backward);
}

}  // namespace disk_ops
