// Local maxima of a heatmap.
//
// A pixel wins if it is above everything that precedes it in its window in raster order and not below anything that
// follows. Split by rows: above the `radius` pixels to its left, not below those to its right; then the same with the
// rows over and under it, each row represented by its maximum over the window's columns. So plateaus are settled
// exactly by maxima of runs alone. A run of `radius` pixels is covered by at most four shorter runs, which come
// from a pass that merges four runs of a quarter of their length: log4(radius) passes for any window.
//
// Windows whose tile fits shared memory are done in one kernel, larger ones by the same steps in scratch memory.
#pragma once

#include "launch.cuh"
#include "nms_topk_kernel.h"
#include "number.cuh"

namespace disk_ops {

constexpr int kTile = 32;       // pixels of a tile in x and y, also threads in x
constexpr int kTileLanes = 8;   // threads in y: each has kTile / kTileLanes pixels of a column
constexpr int kMergedRuns = 4;
constexpr int kSharedBytes = 48 << 10;

// The length of precomputed runs of which at most four cover `radius` pixels.
DISK_HD int run_length(int radius) {
  int length = 1;
  while (radius > kMergedRuns * length) length *= kMergedRuns;
  return length;
}

template <typename C>
struct FindRule {  // MaximumRule in the heatmap's computing type
  int radius_x, radius_y, run_x, run_y, border;
  C threshold;
};

// The value that a pixel competes with: -inf outside of the image, where masked, and for NaN.
template <typename T>
__device__ __forceinline__ computing<T> competing_value(const HeatmapView<T>& view, int64_t b, int y, int x) {
  const auto lowest = lowest_number<computing<T>>();
  if (y < 0 || x < 0 || y >= view.height || x >= view.width) return lowest;
  if (view.mask != nullptr &&
      !view.mask[b * view.mask_batch_stride + y * view.mask_y_stride + x * view.mask_x_stride])
    return lowest;
  const auto value = to_number(view.heatmap[b * view.batch_stride + y * view.y_stride + x * view.x_stride]);
  return value == value ? value : lowest;
}

template <typename T>
__device__ __forceinline__ bool may_be_chosen(const HeatmapView<T>& view, const FindRule<computing<T>>& rule, int y,
                                              int x, computing<T> value) {
  return value > rule.threshold && y >= rule.border && x >= rule.border && y < view.height - rule.border &&
         x < view.width - rule.border;
}

// The maximum over `reach` pixels from the one that run_at(0) starts at; run_at(i) is the maximum of the `length`
// pixels that start i pixels further on.
template <typename C, typename RunAt>
__device__ __forceinline__ C covered_maximum(int reach, int length, RunAt run_at) {
  C highest = lowest_number<C>();
  for (int start = 0; start < reach; start += length) {
    highest = larger(highest, run_at(start + length <= reach ? start : reach - length));
  }
  return highest;
}

DISK_HD unsigned long long maximum_key(float score, int pixel) {
  return static_cast<unsigned long long>(~ordered_bits(score)) << 32 | static_cast<unsigned>(pixel);
}
DISK_HD WideKey maximum_key(double score, int pixel) {
  return {~ordered_bits(score), static_cast<uint32_t>(pixel), 0u};
}

// Each thread's `mine` keys get places of their own in the list of an image; one global atomic for a block. `found`
// (zero) and `list_start` are shared; all threads of the block must come here, with an image in common.
__device__ __forceinline__ int64_t places_in_list(int mine, int* count, int& found, int& list_start) {
  const int before = mine != 0 ? atomicAdd(&found, mine) : 0;
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) list_start = found != 0 ? atomicAdd(count, found) : 0;
  __syncthreads();
  return static_cast<int64_t>(list_start) + before;
}

template <typename C>
DISK_HD int tile_shared_numbers(const FindRule<C>& rule) {
  const int width = kTile + 2 * rule.radius_x, height = kTile + 2 * rule.radius_y;
  const bool has_runs = rule.run_x > 1 || rule.run_y > 1;
  return width * height * (has_runs ? 2 : 1) + kTile * height;
}

// Block (kTile, kTileLanes); one block for each tile of each image.
template <typename T>
__global__ void __launch_bounds__(kTile* kTileLanes)
    find_maxima_in_tiles_kernel(HeatmapView<T> view, FindRule<computing<T>> rule, MaximumKey<T>* keys,  // [B, capacity]
                                int* counts,                                                            // [B]
                                int64_t capacity, int tiles_x, int tiles_y) {
  using C = computing<T>;
  const int column = threadIdx.x, lane = threadIdx.y, thread = lane * kTile + column;
  const int reach_x = rule.radius_x, reach_y = rule.radius_y;
  const int width = kTile + 2 * reach_x, height = kTile + 2 * reach_y;
  DISK_DYNAMIC_SHARED(C, values);            // [height, width]
  C* const wide = values + width * height;   // [height, kTile]: maxima over the window's columns
  C* const runs = wide + kTile * height;     // [height, width] of columns, then [height, kTile] of rows
  __shared__ int found, list_start;

  const int tile = blockIdx.x % (tiles_x * tiles_y);
  const int64_t b = blockIdx.x / (tiles_x * tiles_y);
  const int x0 = tile % tiles_x * kTile, y0 = tile / tiles_x * kTile;
  if (thread == 0) found = 0;
  for (int i = thread; i < width * height; i += kTile * kTileLanes) {
    const int y = i / width, x = i - y * width;
    values[i] = competing_value(view, b, y0 + y - reach_y, x0 + x - reach_x);
  }
#if !defined(DISK_PLANT_MISSING_BARRIER)
  __syncthreads();
#endif

  if (rule.run_x > 1) {  // 4: tiles have no room for radii above 16
    for (int i = thread; i < width * height; i += kTile * kTileLanes) {
      if (i % width > width - kMergedRuns) continue;
      runs[i] = larger(larger(values[i], values[i + 1]), larger(values[i + 2], values[i + 3]));
    }
    __syncthreads();
  }
  const C* const row_runs = rule.run_x > 1 ? runs : values;
  unsigned wins = 0;  // bit j: the thread's j-th pixel wins in its own row
  for (int row = lane - (reach_y + kTileLanes - 1) / kTileLanes * kTileLanes; row < kTile + reach_y;
       row += kTileLanes) {
    if (row < -reach_y) continue;
    const int i = (row + reach_y) * width + reach_x + column;
    const C value = values[i];
    const C left = covered_maximum<C>(reach_x, rule.run_x, [&](int start) { return row_runs[i - reach_x + start]; });
    const C right = covered_maximum<C>(reach_x, rule.run_x, [&](int start) { return row_runs[i + 1 + start]; });
    wide[(row + reach_y) * kTile + column] = larger(value, larger(left, right));
    if (row >= 0 && row < kTile && value > left && value >= right) wins |= 1u << (row / kTileLanes);
  }
  __syncthreads();

  if (rule.run_y > 1) {
    for (int row = lane; row <= height - kMergedRuns; row += kTileLanes) {
      const C* const from = wide + row * kTile + column;
      runs[row * kTile + column] = larger(larger(from[0], from[kTile]), larger(from[2 * kTile], from[3 * kTile]));
    }
    __syncthreads();
  }
  const C* const column_runs = (rule.run_y > 1 ? runs : wide) + column;
  for (unsigned left_over = wins; left_over != 0; left_over &= left_over - 1) {
    const int j = __ffs(static_cast<int>(left_over)) - 1, row = j * kTileLanes + lane;
    const C value = values[(row + reach_y) * width + reach_x + column];
    const C over =
        covered_maximum<C>(reach_y, rule.run_y, [&](int start) { return column_runs[(row + start) * kTile]; });
    const C under = covered_maximum<C>(reach_y, rule.run_y,
                                       [&](int start) { return column_runs[(row + reach_y + 1 + start) * kTile]; });
    if (!(may_be_chosen(view, rule, y0 + row, x0 + column, value) && value > over && value >= under))
      wins &= ~(1u << j);
  }

  int64_t place = places_in_list(__popc(wins), counts + b, found, list_start);
  for (; wins != 0; wins &= wins - 1) {
    const int row = (__ffs(static_cast<int>(wins)) - 1) * kTileLanes + lane;
    const C value = values[(row + reach_y) * width + reach_x + column];
    keys[b * capacity + place++] = maximum_key(value, (y0 + row) * view.width + x0 + column);
  }
}

// A plane of numbers for each image, with `top` rows and `left` columns more than the image.
template <typename C>
struct Plane {
  C* data;  // [B, top + height, left + width]
  int height, width, top, left;

  __device__ __forceinline__ C* at(int64_t b, int y, int x) const {
    return data + (b * (top + height) + top + y) * (left + width) + left + x;
  }
  __device__ __forceinline__ C value(int64_t b, int y, int x) const {
    return y < -top || x < -left || y >= height || x >= width ? lowest_number<C>() : *at(b, y, x);
  }
};
template <typename T>
struct HeatmapPlane {
  HeatmapView<T> view;

  __device__ __forceinline__ computing<T> value(int64_t b, int y, int x) const {
    return competing_value(view, b, y, x);
  }
};

// Calls use(b, y, x) for the pixels of planes with `rows` rows and `columns` columns, first_y and first_x the first.
template <typename Use>
__device__ __forceinline__ void for_each_pixel(int64_t batch, int first_y, int rows, int first_x, int columns,
                                               Use use) {
  const int x = static_cast<int>(blockIdx.x * kTile + threadIdx.x);
  if (x >= columns) return;
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * kTileLanes + threadIdx.y; row < batch * rows;
       row += static_cast<int64_t>(gridDim.y) * kTileLanes) {
    const int64_t b = row / rows;
    use(b, first_y + static_cast<int>(row - b * rows), first_x + x);
  }
}

// target = the maximum of the source's runs at 0, 1, 2 and 3 steps: runs four times as long.
template <typename C, typename Source>
__global__ void __launch_bounds__(kTile* kTileLanes)
    merge_runs_kernel(Source source, Plane<C> target, int64_t batch, int step_y, int step_x) {
  for_each_pixel(batch, -target.top, target.top + target.height, -target.left, target.left + target.width,
                 [&](int64_t b, int y, int x) {
                   C highest = source.value(b, y, x);
                   for (int k = 1; k < kMergedRuns; ++k)
                     highest = larger(highest, source.value(b, y + k * step_y, x + k * step_x));
                   *target.at(b, y, x) = highest;
                 });
}

// wide = maxima over the window's columns; wins = whether a pixel wins in its own row.
template <typename T>
__global__ void __launch_bounds__(kTile* kTileLanes)
    win_rows_kernel(HeatmapView<T> view, Plane<computing<T>> runs, FindRule<computing<T>> rule,
                    Plane<computing<T>> wide,
                    bool* wins) {  // [B, H, W]
  using C = computing<T>;
  for_each_pixel(view.batch, 0, view.height, 0, view.width, [&](int64_t b, int y, int x) {
    const C value = competing_value(view, b, y, x);
    const C left = covered_maximum<C>(rule.radius_x, rule.run_x, [&](int start) {
      return runs.value(b, y, x - rule.radius_x + start);
    });
    const C right =
        covered_maximum<C>(rule.radius_x, rule.run_x, [&](int start) { return runs.value(b, y, x + 1 + start); });
    *wide.at(b, y, x) = larger(value, larger(left, right));
    wins[(b * view.height + y) * view.width + x] = value > left && value >= right;
  });
}

// Grid (pixels of an image, images): a block's pixels are all of one image, as places_in_list wants.
template <typename T>
__global__ void __launch_bounds__(kTile* kTileLanes)
    win_columns_kernel(HeatmapView<T> view, Plane<computing<T>> runs, FindRule<computing<T>> rule,
                       const bool* wins,     // [B, H, W]
                       MaximumKey<T>* keys,  // [B, capacity]
                       int* counts,          // [B]
                       int64_t capacity) {
  using C = computing<T>;
  __shared__ int found, list_start;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kTile * kTileLanes) + threadIdx.x;
  const int pixels = view.height * view.width, pixel = static_cast<int>(index);
  for (int64_t b = blockIdx.y; b < view.batch; b += gridDim.y) {
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    bool won = index < pixels && wins[b * pixels + pixel];
    C value{};
    if (won) {
      const int y = pixel / view.width, x = pixel - y * view.width;
      value = competing_value(view, b, y, x);
      won = may_be_chosen(view, rule, y, x, value) &&
            value > covered_maximum<C>(rule.radius_y, rule.run_y, [&](int start) {
              return runs.value(b, y - rule.radius_y + start, x);
            }) &&
            value >= covered_maximum<C>(rule.radius_y, rule.run_y,
                                        [&](int start) { return runs.value(b, y + 1 + start, x); });
    }
    const int64_t place = places_in_list(won, counts + b, found, list_start);
    if (won) keys[b * capacity + place] = maximum_key(value, pixel);
    __syncthreads();  // found is reset for the next image
  }
}

}  // namespace disk_ops
