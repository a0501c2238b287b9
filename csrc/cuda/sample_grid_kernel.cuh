// The kernels of sample_grid_kernel.h and their launchers.
//
// A block has cells that lie side by side. It reads their pixels into shared memory, row after row of the image; then a
// thread has a row of a cell, whose weights it adds from left to right, and at last a thread has a cell.
#pragma once

#include "../sampling.h"
#include "launch.cuh"
#include "number.cuh"
#include "sample_grid_kernel.h"

namespace disk_ops {

constexpr int kSampleThreads = 256;
constexpr int kSampleWarps = kSampleThreads / 32;
constexpr int kSampleBlocks = 4;  // on a multiprocessor at least: without, ptxas spares registers and spills
constexpr int kSamplePixels = kMostCell * kMostCell;  // of a block, at most

struct CellGrid {
  int cell, rows, columns;  // of an image, in cells
  int count, blocks;        // cells of a block, blocks in a row of cells
};

// The cells of a block. Pixels are counted within them, from the first one's upper left corner.
struct CellRun {
  int64_t image;
  int row, column, count;   // in cells: the first one, and how many
  int y, x, height, width;  // in pixels
};

__device__ __forceinline__ CellRun cells_of_block(const CellGrid& grid, int height, int width) {
  const int block = static_cast<int>(blockIdx.x), row = block / grid.blocks, first = block % grid.blocks * grid.count;
  CellRun cells{row / grid.rows, row % grid.rows, first, smaller(grid.count, grid.columns - first), 0, 0, 0, 0};
  cells.y = cells.row * grid.cell, cells.x = first * grid.cell;
  cells.height = smaller(grid.cell, height - cells.y), cells.width = smaller(grid.count * grid.cell, width - cells.x);
  return cells;
}

// Shared memory. Pitches are odd: threads that have the rows of a cell, or the cells of a row, read different banks.
template <typename C>
struct CellWeights {
  C* weights;  // [cell, pitch]: logits at first
  C* highest;  // [cells, row_pitch] logit of a row of a cell
  C* sums;     // [cells, row_pitch] of weights in a row of a cell
  int pitch, row_pitch;

  DISK_HD CellWeights(C* memory, const CellGrid& grid) : weights(memory), pitch(pitch_of(grid)) {
    row_pitch = grid.cell | 1;
    highest = weights + grid.cell * pitch;
    sums = highest + grid.count * row_pitch;
  }
  static DISK_HD int pitch_of(const CellGrid& grid) { return (grid.cell * grid.count) | 1; }
  static DISK_HD int numbers(const CellGrid& grid) {
    return grid.cell * pitch_of(grid) + 2 * grid.count * (grid.cell | 1);
  }

  // Of a cell without pixels to propose: any finite number, for then all weights are 0.
  __device__ __forceinline__ C highest_of(int cell, int rows) const {
    const C* const row_highest = highest + cell * row_pitch;
    C most = row_highest[0];
    for (int row = 1; row < rows; ++row) most = larger(most, row_highest[row]);
    return most == lowest_number<C>() ? C(0) : most;
  }
  __device__ __forceinline__ C total_of(int cell, int rows) const {
    const C* const sum = sums + cell * row_pitch;
    C total = sum[0];
    for (int row = 1; row < rows; ++row) total += sum[row];
    return total;
  }
};

// -inf where never proposed; y and x within the cells.
template <typename T>
__device__ __forceinline__ computing<T> logit_at(const HeatmapView<T>& view, const CellRun& cells, int y, int x) {
  y += cells.y, x += cells.x;
  if (view.mask != nullptr &&
      !view.mask[cells.image * view.mask_batch_stride + y * view.mask_y_stride + x * view.mask_x_stride])
    return lowest_number<computing<T>>();
  return usable_logit(to_number(view.heatmap[cells.image * view.batch_stride + y * view.y_stride + x * view.x_stride]));
}

// Fills shared memory; ends with a barrier.
template <typename T>
__device__ __forceinline__ void weigh_cells(const HeatmapView<T>& view, const CellGrid& grid, const CellRun& cells,
                                            const CellWeights<computing<T>>& shared) {
  using C = computing<T>;
  const int thread = threadIdx.x;
  for (int y = thread / 32; y < cells.height; y += kSampleWarps)
    for (int x = thread % 32; x < cells.width; x += 32)
      shared.weights[y * shared.pitch + x] = logit_at(view, cells, y, x);
#if !defined(DISK_PLANT_MISSING_BARRIER)
  __syncthreads();
#endif

  const int cell = thread / grid.cell, row = thread % grid.cell;  // a block has at least as many threads as rows
  const bool has_row = cell < cells.count && row < cells.height;
  const int place = cell * shared.row_pitch + row, size = smaller(grid.cell, cells.width - cell * grid.cell);
  C* const weight = shared.weights + row * shared.pitch + cell * grid.cell;
  if (has_row) {
    C most = weight[0];
    for (int x = 1; x < size; ++x) most = larger(most, weight[x]);
    shared.highest[place] = most;
  }
  __syncthreads();
  if (has_row) {
    const C most = shared.highest_of(cell, cells.height);
    C sum = weight[0] = exp_nonpositive(weight[0] - most);
    for (int x = 1; x < size; ++x) sum += weight[x] = exp_nonpositive(weight[x] - most);
    shared.sums[place] = sum;
  }
  __syncthreads();
}

struct CellPixel {
  int y, x;  // within a block's cells
};

// The first pixel at which the sum of weights passes the threshold.
template <typename C>
__device__ __forceinline__ CellPixel propose(const CellWeights<C>& shared, const CellRun& cells, int cell, int left,
                                             int right, C threshold) {
  const C* const sums = shared.sums + cell * shared.row_pitch;
  int y = 0, x = left;
  C before = 0, after = sums[0];
  while (!(after > threshold) && y + 1 < cells.height) {
    before = after;
    after += sums[++y];
  }
  const C* const weight = shared.weights + y * shared.pitch;
  for (C sum = weight[x]; !(before + sum > threshold) && x + 1 < right; sum += weight[x]) ++x;
  return {y, x};
}

// The first pixel with the highest logit. Logits are read again: different ones can have equal weights.
template <typename T>
__device__ __forceinline__ CellPixel find_highest(const HeatmapView<T>& view,
                                                  const CellWeights<computing<T>>& shared, const CellRun& cells,
                                                  int cell, int left, int right, computing<T> highest) {
  int y = 0, x = left;
  while (y + 1 < cells.height && shared.highest[cell * shared.row_pitch + y] != highest) ++y;
  while (x + 1 < right && logit_at(view, cells, y, x) != highest) ++x;
  return {y, x};
}

template <typename T>
__global__ void __launch_bounds__(kSampleThreads)
    sample_grid_kernel(HeatmapView<T> view, CellGrid grid, uint64_t seed, bool argmax,
                       int64_t* __restrict__ keypoints,    // [B, h, w, 2] xy
                       bool* __restrict__ accepted,        // [B, h, w]
                       computing<T>* __restrict__ logp) {  // [B, h, w]
  using C = computing<T>;
  DISK_DYNAMIC_SHARED(C, memory);
  const CellWeights<C> shared(memory, grid);
  const CellRun cells = cells_of_block(grid, view.height, view.width);
  weigh_cells(view, grid, cells, shared);
  const int cell = threadIdx.x;
  if (cell >= cells.count) return;

  const int left = cell * grid.cell, right = smaller(left + grid.cell, cells.width);
  const int64_t index = (cells.image * grid.rows + cells.row) * grid.columns + cells.column + cell;
  const C highest = shared.highest_of(cell, cells.height), total = shared.total_of(cell, cells.height);
  CellPixel pixel{0, left};
  bool is_kept = false;
  C log = 0;
  if (total > 0) {
    C acceptance = 0;
    if (argmax) {
      pixel = find_highest(view, shared, cells, cell, left, right, highest);
    } else {
      const uint32_t number = static_cast<uint32_t>(cells.row) * static_cast<uint32_t>(grid.columns) +
                              static_cast<uint32_t>(cells.column + cell);
      const Uniforms<C> uniforms = uniforms_of<C>(seed, number, static_cast<uint32_t>(cells.image));
      pixel = propose(shared, cells, cell, left, right, proposal_threshold(uniforms.proposal, total));
      acceptance = uniforms.acceptance;
    }
    const C logit = logit_at(view, cells, pixel.y, pixel.x);
    is_kept = argmax ? logit > 0 : is_accepted(acceptance, logit);
    log = log_probability(logit, highest, total, is_kept);
  }
  keypoints[2 * index] = cells.x + pixel.x, keypoints[2 * index + 1] = cells.y + pixel.y;
  accepted[index] = is_kept, logp[index] = log;
}

// The gradient in a cell: -scale * weight, but `own` at the proposal.
template <typename C>
struct CellGradient {
  C scale, own;
  int y, x;  // of the proposal within the block's cells; -1 without one
};

template <typename T>
__device__ __forceinline__ CellGradient<computing<T>> gradient_of_cell(
    const HeatmapView<T>& view, const CellGrid& grid, const CellRun& cells, const CellWeights<computing<T>>& shared,
    int cell, computing<T> grad_logp, int64_t keypoint_x, int64_t keypoint_y, bool accepted) {
  using C = computing<T>;
  const C total = shared.total_of(cell, cells.height);
  CellGradient<C> gradient{total > 0 ? grad_logp / total : C(0), 0, -1, -1};
  const int left = cell * grid.cell, right = smaller(left + grid.cell, cells.width);
  const int64_t x = keypoint_x - cells.x, y = keypoint_y - cells.y;
  if (x < left || x >= right || y < 0 || y >= cells.height) return gradient;
  const C weight = shared.weights[y * shared.pitch + x];
  if (weight == 0) return gradient;  // nothing was proposed
  gradient.y = static_cast<int>(y), gradient.x = static_cast<int>(x);
  const C slope = own_slope(logit_at(view, cells, gradient.y, gradient.x), accepted);
  gradient.own = grad_logp * slope - gradient.scale * weight;
  return gradient;
}

template <typename T>
__global__ void __launch_bounds__(kSampleThreads, kSampleBlocks)
    sample_grid_backward_kernel(HeatmapView<T> view, CellGrid grid,
                                const computing<T>* __restrict__ grad_logp,  // [B, h, w]
                                const int64_t* __restrict__ keypoints,       // [B, h, w, 2] xy
                                const bool* __restrict__ accepted,           // [B, h, w]
                                T* __restrict__ grad) {                      // [B, H, W]
  using C = computing<T>;
  DISK_DYNAMIC_SHARED(C, memory);
  __shared__ CellGradient<C> gradients[kSampleThreads];
  const CellWeights<C> shared(memory, grid);
  const CellRun cells = cells_of_block(grid, view.height, view.width);
  weigh_cells(view, grid, cells, shared);
  const int thread = threadIdx.x;
  if (thread < cells.count) {
    const int64_t index = (cells.image * grid.rows + cells.row) * grid.columns + cells.column + thread;
    gradients[thread] = gradient_of_cell(view, grid, cells, shared, thread, grad_logp[index], keypoints[2 * index],
                                         keypoints[2 * index + 1], accepted[index]);
  }
  __syncthreads();

  const int64_t first = (cells.image * view.height + cells.y) * view.width + cells.x;
  for (int x = thread % 32; x < cells.width; x += 32) {
    const CellGradient<C> gradient = gradients[x / grid.cell];
    for (int y = thread / 32; y < cells.height; y += kSampleWarps) {
      const C number = y == gradient.y && x == gradient.x ? gradient.own
                                                          : -gradient.scale * shared.weights[y * shared.pitch + x];
      grad[first + static_cast<int64_t>(y) * view.width + x] = from_number<T>(number);
    }
  }
}

inline CellGrid cell_grid(int height, int width, int cell) {
  const auto along = [](int64_t pixels, int64_t size) { return static_cast<int>((pixels + size - 1) / size); };
  CellGrid grid{cell, along(height, cell), along(width, cell), 0, 0};
  const int fit = smaller(kSampleThreads / cell, kSamplePixels / (cell * cell));  // 1 or more
  grid.count = smaller(fit, grid.columns);
  grid.blocks = along(grid.columns, grid.count);
  return grid;
}

inline dim3 sample_blocks(int64_t batch, const CellGrid& grid) {
  return dim3(static_cast<unsigned>(batch * grid.rows * grid.blocks));
}
template <typename C>
size_t cell_weights_bytes(const CellGrid& grid) {
  return static_cast<size_t>(CellWeights<C>::numbers(grid)) * sizeof(C);
}

int64_t sample_grid_blocks(int height, int width, int cell) {
  const CellGrid grid = cell_grid(height, width, cell);
  return static_cast<int64_t>(grid.rows) * grid.blocks;
}

template <typename T>
cudaError_t launch_sample_grid(const HeatmapView<T>& view, int cell, uint64_t seed, bool argmax, int64_t* keypoints,
                               bool* accepted, computing<T>* logp, cudaStream_t stream) {
  const CellGrid grid = cell_grid(view.height, view.width, cell);
  DISK_LAUNCH((sample_grid_kernel<T>), sample_blocks(view.batch, grid), dim3(kSampleThreads),
              cell_weights_bytes<computing<T>>(grid), stream)
  (view, grid, seed, argmax, keypoints, accepted, logp);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_sample_grid_backward(const HeatmapView<T>& view, int cell, const computing<T>* grad_logp,
                                        const int64_t* keypoints, const bool* accepted, T* grad,
                                        cudaStream_t stream) {
  const CellGrid grid = cell_grid(view.height, view.width, cell);
  DISK_LAUNCH((sample_grid_backward_kernel<T>), sample_blocks(view.batch, grid), dim3(kSampleThreads),
              cell_weights_bytes<computing<T>>(grid), stream)
  (view, grid, grad_logp, keypoints, accepted, grad);
  return cudaGetLastError();
}

// One translation unit instantiates this for every element type.
#define DISK_INSTANTIATE_SAMPLE_GRID(T)                                                                             \
  template cudaError_t launch_sample_grid<T>(const HeatmapView<T>&, int, uint64_t, bool, int64_t*, bool*,           \
                                             computing<T>*, cudaStream_t);                                          \
  template cudaError_t launch_sample_grid_backward<T>(const HeatmapView<T>&, int, const computing<T>*, const int64_t*, \
                                                      const bool*, T*, cudaStream_t);

}  // namespace disk_ops
