// nearest_neighbors on the CPU: best and second-best neighbours both ways from one pass over the products.
//
// The product is a packed, register-tiled matrix multiplication whose results stay in registers: one comparison
// against the second-best keys so far tells whether any of them matters. Each thread keeps column neighbours of its
// own and merges them by (key, index), an order that doesn't depend on who found what when.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "../arguments.h"
#include "packing.h"

namespace disk_ops {
namespace {

constexpr int64_t kBlockRows = 192;  // packed: 96 KiB of 128 floats, stays in the second-level cache

template <typename real>
struct TopTwo {  // two nearest neighbours of each of `size` descriptors
  std::vector<real> best, second;
  std::vector<int32_t> best_index, second_index;

  explicit TopTwo(int64_t size) { reset(size); }

  void reset(int64_t size) {
    best.assign(size, std::numeric_limits<real>::infinity()), second = best;
    best_index.assign(size, -1), second_index = best_index;
  }

  // Candidates come in ascending order of index, so that a tie leaves the lower one in place.
  void insert(int64_t i, real key, int32_t index) {
    if (key < best[i]) {
      second[i] = best[i], second_index[i] = best_index[i];
      best[i] = key, best_index[i] = index;
    } else if (key < second[i]) {
      second[i] = key, second_index[i] = index;
    }
  }

  void merge(int64_t i, real key, int32_t index) {
    if (index < 0) return;
    if (best_index[i] < 0 || key < best[i] || (key == best[i] && index < best_index[i])) {
      std::swap(key, best[i]), std::swap(index, best_index[i]);
      if (index < 0) return;
    }
    if (second_index[i] < 0 || key < second[i] || (key == second[i] && index < second_index[i]))
      second[i] = key, second_index[i] = index;
  }
};

template <typename real>
struct RowBlock {
  const real* packed;      // [padded / tile rows, depth, tile rows]
  const real* half_norms;  // [padded] half squared norms, +inf where there is no descriptor
  int64_t first, padded;
};

template <typename real>
struct Columns {
  const real* packed;      // [padded / tile columns, depth, tile columns]
  const real* half_norms;  // [padded]
  int64_t depth, padded;
};

template <typename real>
struct Kernel {
  int64_t rows, columns;  // of a tile
  void (*search)(const RowBlock<real>&, const Columns<real>&, TopTwo<real>&, TopTwo<real>&);
};

}  // namespace
}  // namespace disk_ops

#define DISK_KERNELS "nearest_neighbors_simd.h"
#include "instruction_sets.h"

namespace disk_ops {
namespace {

template <typename real>
class Search {
 public:
  Search(const at::Tensor& desc1, const at::Tensor& desc2, const std::optional<at::Tensor>& valid1,
         const std::optional<at::Tensor>& valid2)
      : batch_(desc1.size(0)),
        rows_(desc1.size(1)),
        columns_(desc2.size(1)),
        depth_(desc1.size(2)),
        kernel_(choose_kernel<real>()),
        padded_columns_(round_up(columns_, kernel_.columns)),
        desc1_(desc1.const_data_ptr<real>()),
        desc2_(desc2.const_data_ptr<real>()),
        valid1_(valid1 ? valid1->const_data_ptr<bool>() : nullptr),
        valid2_(valid2 ? valid2->const_data_ptr<bool>() : nullptr),
        packed_(batch_ * padded_columns_ * depth_),
        half_norms_(batch_ * padded_columns_),
        row_best_(batch_ * rows_),
        column_best_(batch_ * columns_) {}

  void run() {
    pack_columns();
    std::atomic<int64_t> next{0};
    const int64_t workers = std::min<int64_t>(at::get_num_threads(), batch_ * blocks());
    at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) work(next);
    });
  }

  // Distances by differences, which lose nothing between near-equal descriptors, nearest first.
  void write(const TopTwo<real>& found, const real* from, const real* to, int64_t from_rows, int64_t to_rows,
             at::Tensor& distances, at::Tensor& indices) const {  // [B, from_rows, 2] both
    real* distance = distances.mutable_data_ptr<real>();
    int64_t* index = indices.mutable_data_ptr<int64_t>();
    at::parallel_for(0, batch_ * from_rows, 256, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const real* other = to + i / from_rows * to_rows * depth_;
        int32_t first = found.best_index[i], second = found.second_index[i];
        real near = distance_between(from + i * depth_, other, first);
        real far = distance_between(from + i * depth_, other, second);
        if (second >= 0 && (far < near || (far == near && second < first)))
          std::swap(near, far), std::swap(first, second);
        distance[2 * i] = near, distance[2 * i + 1] = far;
        index[2 * i] = first, index[2 * i + 1] = second;
      }
    });
  }

  void write_rows(at::Tensor& distances, at::Tensor& indices) const {
    write(row_best_, desc1_, desc2_, rows_, columns_, distances, indices);
  }
  void write_columns(at::Tensor& distances, at::Tensor& indices) const {
    write(column_best_, desc2_, desc1_, columns_, rows_, distances, indices);
  }

 private:
  int64_t blocks() const { return (rows_ + kBlockRows - 1) / kBlockRows; }

  real distance_between(const real* row, const real* others, int64_t index) const {
    if (index < 0) return std::numeric_limits<real>::infinity();
    const real* other = others + index * depth_;
    real squares = 0;
    for (int64_t k = 0; k < depth_; ++k) squares += (row[k] - other[k]) * (row[k] - other[k]);
    return std::sqrt(squares);
  }

  void pack_columns() {
    const int64_t width = kernel_.columns, panels = padded_columns_ / width;
    at::parallel_for(0, batch_ * panels, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / panels, first = i % panels * width;
        pack(desc2_ + (b * columns_ + first) * depth_, valid2_ ? valid2_ + b * columns_ + first : nullptr,
             std::min(width, columns_ - first), width, depth_, width, std::numeric_limits<real>::infinity(),
             packed_.data() + (b * padded_columns_ + first) * depth_,
             half_norms_.data() + b * padded_columns_ + first);
      }
    });
  }

  // Takes blocks in ascending order, so that each thread meets the rows of an image in ascending order.
  void work(std::atomic<int64_t>& next) {
    const int64_t padded_rows = round_up(kBlockRows, kernel_.rows);
    std::vector<real> packed(padded_rows * depth_), half_norms(padded_rows);
    TopTwo<real> row_best(0), column_best(0);
    int64_t image = -1;
    for (int64_t task; (task = next++) < batch_ * blocks();) {
      if (task / blocks() != image) {
        publish_columns(image, column_best);
        image = task / blocks();
        column_best.reset(padded_columns_);
      }
      const int64_t first = task % blocks() * kBlockRows, count = std::min(kBlockRows, rows_ - first);
      const int64_t padded = round_up(count, kernel_.rows), offset = image * rows_ + first;
      pack(desc1_ + offset * depth_, valid1_ ? valid1_ + offset : nullptr, count, padded, depth_, kernel_.rows,
           std::numeric_limits<real>::infinity(), packed.data(), half_norms.data());
      row_best.reset(padded);
      kernel_.search({packed.data(), half_norms.data(), first, padded},
                     {packed_.data() + image * padded_columns_ * depth_, half_norms_.data() + image * padded_columns_,
                      depth_, padded_columns_},
                     row_best, column_best);
      std::copy_n(row_best.best_index.begin(), count, row_best_.best_index.begin() + offset);
      std::copy_n(row_best.second_index.begin(), count, row_best_.second_index.begin() + offset);
    }
    publish_columns(image, column_best);
  }

  void publish_columns(int64_t image, const TopTwo<real>& mine) {
    if (image < 0) return;
    const std::lock_guard<std::mutex> lock(merging_);
    for (int64_t j = 0; j < columns_; ++j) {
      column_best_.merge(image * columns_ + j, mine.best[j], mine.best_index[j]);
      column_best_.merge(image * columns_ + j, mine.second[j], mine.second_index[j]);
    }
  }

  const int64_t batch_, rows_, columns_, depth_;
  const Kernel<real> kernel_;
  const int64_t padded_columns_;
  const real* desc1_;   // [B, N, D]
  const real* desc2_;   // [B, M, D]
  const bool* valid1_;  // [B, N] or null
  const bool* valid2_;  // [B, M] or null
  std::vector<real> packed_, half_norms_;
  TopTwo<real> row_best_, column_best_;
  std::mutex merging_;
};

template <typename real>
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> nearest_neighbors_typed(
    const at::Tensor& desc1, const at::Tensor& desc2, const std::optional<at::Tensor>& valid1,
    const std::optional<at::Tensor>& valid2) {
  const auto real_options = desc1.options(), index_options = desc1.options().dtype(at::kLong);
  auto distances1 = at::empty({desc1.size(0), desc1.size(1), 2}, real_options);
  auto indices1 = at::empty({desc1.size(0), desc1.size(1), 2}, index_options);
  auto distances2 = at::empty({desc2.size(0), desc2.size(1), 2}, real_options);
  auto indices2 = at::empty({desc2.size(0), desc2.size(1), 2}, index_options);
  Search<real> search(desc1, desc2, valid1, valid2);
  search.run();
  search.write_rows(distances1, indices1);
  search.write_columns(distances2, indices2);
  return {distances1, indices1, distances2, indices2};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> nearest_neighbors(
    const at::Tensor& desc1,                    // [B, N, D]
    const at::Tensor& desc2,                    // [B, M, D]
    const std::optional<at::Tensor>& valid1,    // [B, N] bool
    const std::optional<at::Tensor>& valid2) {  // [B, M] bool
  check_nearest_neighbors(desc1, desc2, valid1, valid2);
  std::optional<at::Tensor> keep1, keep2;
  if (valid1) keep1 = valid1->contiguous();
  if (valid2) keep2 = valid2->contiguous();
  if (desc1.scalar_type() == at::kDouble)
    return nearest_neighbors_typed<double>(desc1.contiguous(), desc2.contiguous(), keep1, keep2);
  return nearest_neighbors_typed<float>(desc1.to(at::kFloat).contiguous(), desc2.to(at::kFloat).contiguous(), keep1,
                                        keep2);
}

}  // namespace

TORCH_LIBRARY_IMPL(disk_ops, CPU, m) { m.impl("nearest_neighbors", &nearest_neighbors); }

}  // namespace disk_ops
