// nms_topk on the CPU: local maxima of a heatmap, the n best of each image.
//
// The window maximum is separable, and each of its two passes is a running maximum over power-of-two shifts:
// log2(window) sweeps over contiguous memory instead of window² comparisons. Images are cut into strips of
// rows that fit the cache, so the extra memory is a strip per thread and the candidates found.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "../arguments.h"
#include "simd.h"

namespace disk_ops {
namespace {

constexpr int64_t kStripRows = 64;

struct Rule {
  int64_t height, width, radius, border;
  double threshold;  // a maximum lies strictly above it
};

template <typename scalar>
struct Image {
  const scalar* heatmap;  // [H, W], strided
  int64_t row_stride, column_stride;
  const bool* mask;  // [H, W], strided, or null
  int64_t mask_row_stride, mask_column_stride;
};

template <typename real>
struct Candidate {
  real score;
  int32_t pixel;  // raster index
  bool operator<(const Candidate& other) const {
    return score > other.score || (score == other.score && pixel < other.pixel);
  }
};

// In place: line[i] becomes the maximum of line[i .. i + span), span the largest power of two <= window.
template <typename real>
DISK_CLONE_FOR_SIMD int64_t widen(real* line, int64_t size, int64_t window) {
  int64_t span = 1;
  for (; 2 * span <= window; span *= 2)
    for (int64_t i = 0; i + span < size; ++i) line[i] = line[i] < line[i + span] ? line[i + span] : line[i];
  return span;
}

template <typename real>
DISK_CLONE_FOR_SIMD void maximum_of(real* out, const real* first, const real* second, int64_t size) {
  for (int64_t i = 0; i < size; ++i) out[i] = first[i] < second[i] ? second[i] : first[i];
}

template <typename real>
DISK_CLONE_FOR_SIMD void flag_candidates(uint8_t* flag, const real* value, const real* highest, real threshold,
                                         int64_t size) {
  for (int64_t i = 0; i < size; ++i)
    flag[i] = static_cast<uint8_t>((value[i] == highest[i]) & (value[i] > threshold));
}

// A strip of rows with `radius` rows of context on both sides; what lies outside the image is -inf.
template <typename scalar, typename real>
class Strip {
 public:
  Strip(const Rule& rule, const Image<scalar>& image, int64_t first, int64_t last)
      : rule_(rule),
        radius_x_(std::min(rule.radius, rule.width - 1)),
        radius_y_(std::min(rule.radius, rule.height - 1)),
        first_(first),
        last_(last),
        values_((last - first + 2 * radius_y_) * rule.width),
        highest_(values_.size()) {
    load(image);
    filter_rows();
    filter_columns();
  }

  void collect(std::vector<Candidate<real>>& found) const {
    const int64_t width = rule_.width, border = rule_.border;
    const real threshold = static_cast<real>(rule_.threshold);
    const int64_t left = border, right = width - border;
    std::vector<uint8_t> flags(width + sizeof(uint64_t), 0);
    const int64_t bottom = std::min(last_, rule_.height - border);
    for (int64_t y = std::max(first_, border); y < bottom; ++y) {
      flag_candidates(flags.data(), value_row(y), highest_row(y), threshold, width);
      for (int64_t x = left; x < right;) {
        uint64_t eight;
        std::memcpy(&eight, flags.data() + x, sizeof(eight));
        if (eight == 0) {
          x += sizeof(eight);
          continue;
        }
        if (flags[x] != 0 && is_first_of_plateau(x, y))
          found.push_back({value_row(y)[x], static_cast<int32_t>(y * width + x)});
        ++x;
      }
    }
  }

 private:
  const real* value_row(int64_t y) const { return values_.data() + (y - first_ + radius_y_) * rule_.width; }
  const real* highest_row(int64_t y) const { return highest_.data() + (y - first_) * rule_.width; }

  void load(const Image<scalar>& image) {
    constexpr real kLowest = -std::numeric_limits<real>::infinity();
    for (int64_t y = first_ - radius_y_; y < last_ + radius_y_; ++y) {
      real* row = const_cast<real*>(value_row(y));
      if (y < 0 || y >= rule_.height) {
        std::fill_n(row, rule_.width, kLowest);
        continue;
      }
      const scalar* source = image.heatmap + y * image.row_stride;
      for (int64_t x = 0; x < rule_.width; ++x) {
        const real value = static_cast<real>(source[x * image.column_stride]);
        row[x] = value == value ? value : kLowest;  // NaN is never a maximum and hides none
      }
      if (image.mask == nullptr) continue;
      const bool* keep = image.mask + y * image.mask_row_stride;
      for (int64_t x = 0; x < rule_.width; ++x)
        if (!keep[x * image.mask_column_stride]) row[x] = kLowest;
    }
  }

  void filter_rows() {
    const int64_t width = rule_.width, window = 2 * radius_x_ + 1, rows = values_.size() / width;
    std::vector<real> line(width + 2 * radius_x_);
    for (int64_t row = 0; row < rows; ++row) {
      std::fill(line.begin(), line.end(), -std::numeric_limits<real>::infinity());
      std::copy_n(values_.data() + row * width, width, line.data() + radius_x_);
      const int64_t span = widen(line.data(), static_cast<int64_t>(line.size()), window);
      maximum_of(highest_.data() + row * width, line.data(), line.data() + window - span, width);
    }
  }

  void filter_columns() {  // afterwards the first rows of highest_ are those of the strip itself
    const int64_t width = rule_.width, window = 2 * radius_y_ + 1, rows = highest_.size() / width;
    int64_t span = 1;
    for (; 2 * span <= window; span *= 2)
      for (int64_t row = 0; row + span < rows; ++row) {
        real* line = highest_.data() + row * width;
        maximum_of(line, line, line + span * width, width);
      }
    for (int64_t row = 0; row < last_ - first_; ++row) {
      real* line = highest_.data() + row * width;
      maximum_of(line, line, line + (window - span) * width, width);
    }
  }

  // Equal values within the window: only the first in raster order is a maximum.
  bool is_first_of_plateau(int64_t x, int64_t y) const {
    const real score = value_row(y)[x];
    const int64_t left = std::max<int64_t>(x - radius_x_, 0), right = std::min(x + radius_x_, rule_.width - 1);
    const real* row = value_row(y);
    for (int64_t i = x - 1; i >= left; --i)
      if (row[i] == score) return false;
    for (int64_t above = 1; above <= radius_y_; ++above) {
      row -= rule_.width;
      for (int64_t i = left; i <= right; ++i)
        if (row[i] == score) return false;
    }
    return true;
  }

  const Rule& rule_;
  const int64_t radius_x_, radius_y_, first_, last_;
  std::vector<real> values_;   // [rows + 2 radius, W]
  std::vector<real> highest_;  // [rows + 2 radius, W]: the maximum of each pixel's window
};

template <typename scalar, typename real>
std::vector<std::vector<Candidate<real>>> find_maxima(const at::Tensor& heatmap, const std::optional<at::Tensor>& mask,
                                                      const Rule& rule) {
  const int64_t batch = heatmap.size(0);
  // Strips of at least twice the context keep the work and the memory within a small multiple of the heatmap's.
  const int64_t strip_rows = std::max(kStripRows, 4 * std::min(rule.radius, rule.height));
  const int64_t strips = (rule.height + strip_rows - 1) / strip_rows;
  std::vector<std::vector<Candidate<real>>> by_strip(batch * strips);
  at::parallel_for(0, batch * strips, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / strips, first = task % strips * strip_rows;
      Image<scalar> image{heatmap.const_data_ptr<scalar>() + b * heatmap.stride(0), heatmap.stride(2),
                          heatmap.stride(3), nullptr, 0, 0};
      if (mask) {
        image.mask = mask->const_data_ptr<bool>() + b * mask->stride(0);
        image.mask_row_stride = mask->stride(2), image.mask_column_stride = mask->stride(3);
      }
      const Strip<scalar, real> strip(rule, image, first, std::min(first + strip_rows, rule.height));
      strip.collect(by_strip[task]);
    }
  });
  std::vector<std::vector<Candidate<real>>> by_image(batch);
  for (int64_t b = 0; b < batch; ++b) {
    by_image[b] = std::move(by_strip[b * strips]);
    for (int64_t s = 1; s < strips; ++s) {
      auto& more = by_strip[b * strips + s];
      by_image[b].insert(by_image[b].end(), more.begin(), more.end());
      std::vector<Candidate<real>>().swap(more);
    }
  }
  return by_image;
}

template <typename scalar, typename real>
std::tuple<at::Tensor, at::Tensor, at::Tensor> nms_topk_typed(const at::Tensor& heatmap, std::optional<int64_t> n,
                                                              const Rule& rule, const std::optional<at::Tensor>& mask) {
  const int64_t batch = heatmap.size(0);
  std::vector<std::vector<Candidate<real>>> found(batch);
  if (heatmap.numel() > 0) found = find_maxima<scalar, real>(heatmap, mask, rule);
  int64_t columns = n.value_or(0);
  if (!n)
    for (const auto& list : found) columns = std::max(columns, static_cast<int64_t>(list.size()));

  const auto options = heatmap.options();
  auto keypoints = at::zeros({batch, columns, 2}, options.dtype(at::kLong));
  auto scores = at::zeros({batch, columns}, options);
  auto valid = at::zeros({batch, columns}, options.dtype(at::kBool));
  auto* xy = keypoints.mutable_data_ptr<int64_t>();
  auto* score = scores.mutable_data_ptr<scalar>();
  auto* is_valid = valid.mutable_data_ptr<bool>();
  at::parallel_for(0, batch, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      auto& list = found[b];
      const int64_t kept = std::min(columns, static_cast<int64_t>(list.size()));
      if (kept < static_cast<int64_t>(list.size())) std::nth_element(list.begin(), list.begin() + kept, list.end());
      std::sort(list.begin(), list.begin() + kept);
      for (int64_t k = 0; k < kept; ++k) {
        const int64_t slot = b * columns + k;
        xy[2 * slot] = list[k].pixel % rule.width;
        xy[2 * slot + 1] = list[k].pixel / rule.width;
        score[slot] = static_cast<scalar>(list[k].score);
        is_valid[slot] = true;
      }
    }
  });
  return {keypoints, scores, valid};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> nms_topk(const at::Tensor& heatmap,  // [B, 1, H, W]
                                                        std::optional<int64_t> n, int64_t window_size,
                                                        std::optional<double> score_threshold, int64_t border,
                                                        const std::optional<at::Tensor>& mask) {  // [B, 1, H, W] bool
  check_nms_topk(heatmap, n, window_size, border, mask);
  const Rule rule{heatmap.size(2), heatmap.size(3), window_size / 2, border,
                  score_threshold.value_or(-std::numeric_limits<double>::infinity())};
  switch (heatmap.scalar_type()) {
    case at::kFloat: return nms_topk_typed<float, float>(heatmap, n, rule, mask);
    case at::kDouble: return nms_topk_typed<double, double>(heatmap, n, rule, mask);
    case at::kHalf: return nms_topk_typed<at::Half, float>(heatmap, n, rule, mask);
    default: return nms_topk_typed<at::BFloat16, float>(heatmap, n, rule, mask);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(disk_ops, CPU, m) { m.impl("nms_topk", &nms_topk); }

}  // namespace disk_ops
