// The launchers of nms_topk_kernel.h.
#pragma once

#include <algorithm>

#include "nms_topk_find.cuh"
#include "nms_topk_select.cuh"

namespace disk_ops {

inline int64_t rounded_up(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }
inline unsigned grid_size(int64_t elements, int64_t per_block, int64_t limit = 65535) {
  return static_cast<unsigned>(std::min(rounded_up(elements, per_block) / per_block, limit));
}

template <typename C>
FindRule<C> find_rule(const MaximumRule& rule) {
  return {rule.radius_x,
          rule.radius_y,
          run_length(rule.radius_x),
          run_length(rule.radius_y),
          rule.border,
          static_cast<C>(rule.threshold)};
}

template <typename T>
bool fits_tile(const MaximumRule& rule) {
  using C = computing<T>;
  constexpr int kLargest = kMergedRuns * kMergedRuns;  // one pass over runs
  return rule.radius_x <= kLargest && rule.radius_y <= kLargest &&
         tile_shared_numbers(find_rule<C>(rule)) * static_cast<int>(sizeof(C)) <= kSharedBytes;
}

// Numbers of a plane of scratch memory, which holds runs of rows, their maxima, then runs of columns.
template <typename C>
int64_t plane_numbers(int64_t batch, int64_t height, int64_t width, const FindRule<C>& rule) {
  return batch * std::max(height * (width + rule.run_x - 1), (height + rule.run_y - 1) * width);
}

template <typename T>
int64_t find_maxima_scratch_bytes(int64_t batch, int height, int width, const MaximumRule& rule) {
  using C = computing<T>;
  if (fits_tile<T>(rule)) return 0;
  return 2 * plane_numbers(batch, height, width, find_rule<C>(rule)) * static_cast<int64_t>(sizeof(C)) +
         batch * height * width * static_cast<int64_t>(sizeof(bool));
}

template <typename T>
void find_maxima_in_tiles(const HeatmapView<T>& view, const FindRule<computing<T>>& rule, MaximumKey<T>* keys,
                          int* counts, int64_t capacity, cudaStream_t stream) {
  const int tiles_x = (view.width + kTile - 1) / kTile, tiles_y = (view.height + kTile - 1) / kTile;
  const auto blocks = static_cast<unsigned>(view.batch * tiles_x * tiles_y);
  const size_t shared = tile_shared_numbers(rule) * sizeof(computing<T>);
  DISK_LAUNCH((find_maxima_in_tiles_kernel<T>), dim3(blocks), dim3(kTile, kTileLanes), shared, stream)
  (view, rule, keys, counts, capacity, tiles_x, tiles_y);
}

template <typename C, typename Source>
void merge_runs(const Source& source, const Plane<C>& target, int64_t batch, int step_y, int step_x,
                cudaStream_t stream) {
  const int width = target.left + target.width;
  const dim3 grid(grid_size(width, kTile, INT32_MAX), grid_size(batch * (target.top + target.height), kTileLanes));
  DISK_LAUNCH((merge_runs_kernel<C, Source>), grid, dim3(kTile, kTileLanes), 0, stream)
  (source, target, batch, step_y, step_x);
}

template <typename T>
void find_maxima_in_planes(const HeatmapView<T>& view, const FindRule<computing<T>>& rule, void* scratch,
                           MaximumKey<T>* keys, int* counts, int64_t capacity, cudaStream_t stream) {
  using C = computing<T>;
  const int64_t size = plane_numbers(view.batch, view.height, view.width, rule);
  C* full = static_cast<C*>(scratch);
  C* empty = full + size;
  bool* const wins = reinterpret_cast<bool*>(full + 2 * size);

  const auto plane = [&](C* data, int top, int left) { return Plane<C>{data, view.height, view.width, top, left}; };
  const int left = rule.run_x - 1;
  // The first pass reads the heatmap; where runs are single pixels it merges each with itself, that is, copies it.
  merge_runs(HeatmapPlane<T>{view}, plane(full, 0, left), view.batch, 0, rule.run_x > 1 ? 1 : 0, stream);
  for (int length = kMergedRuns; length < rule.run_x; length *= kMergedRuns) {
    merge_runs(plane(full, 0, left), plane(empty, 0, left), view.batch, 0, length, stream);
    std::swap(full, empty);
  }
  const dim3 row_grid(grid_size(view.width, kTile, INT32_MAX), grid_size(view.batch * view.height, kTileLanes));
  DISK_LAUNCH((win_rows_kernel<T>), row_grid, dim3(kTile, kTileLanes), 0, stream)
  (view, plane(full, 0, left), rule, plane(empty, 0, 0), wins);
  std::swap(full, empty);
  int top = 0;
  for (int length = 1; length < rule.run_y; length *= kMergedRuns) {
    merge_runs(plane(full, top, 0), plane(empty, rule.run_y - 1, 0), view.batch, length, 0, stream);
    std::swap(full, empty);
    top = rule.run_y - 1;
  }
  const int64_t pixels = static_cast<int64_t>(view.height) * view.width;
  const dim3 grid(grid_size(pixels, kTile * kTileLanes, INT32_MAX), grid_size(view.batch, 1));
  DISK_LAUNCH((win_columns_kernel<T>), grid, dim3(kTile * kTileLanes), 0, stream)
  (view, plane(full, top, 0), rule, wins, keys, counts, capacity);
}

template <typename T>
cudaError_t launch_find_maxima(const HeatmapView<T>& view, const MaximumRule& rule, void* scratch,
                               MaximumKey<T>* keys, int* counts, int64_t capacity, cudaStream_t stream) {
  const auto typed = find_rule<computing<T>>(rule);
  if (fits_tile<T>(rule)) {
    find_maxima_in_tiles(view, typed, keys, counts, capacity, stream);
  } else {
    find_maxima_in_planes(view, typed, scratch, keys, counts, capacity, stream);
  }
  return cudaGetLastError();
}

template <typename Key>
void sort_lists(Key* keys, int64_t batch, int64_t padded, cudaStream_t stream) {  // [B, padded]
  const int chunk = static_cast<int>(std::min<int64_t>(padded, kSortBytes / sizeof(Key)));
  const auto chunks = static_cast<unsigned>(batch * (padded / chunk));
  const dim3 threads(std::clamp(chunk / 2, 32, kSortThreads));
  const auto sort_chunks = [&](int64_t first_size, int64_t last_size) {
    DISK_LAUNCH((sort_chunks_kernel<Key>), dim3(chunks), threads, chunk * sizeof(Key), stream)
    (keys, padded, chunk, first_size, last_size);
  };
  if (padded > 1) sort_chunks(2, chunk);
  for (int64_t size = 2 * static_cast<int64_t>(chunk); size <= padded; size *= 2) {
    for (int64_t stride = size / 2; stride >= chunk; stride /= 2) {
      const int64_t pairs = batch * padded / 2;
      DISK_LAUNCH((merge_far_kernel<Key>), dim3(grid_size(pairs, 256, INT32_MAX)), dim3(256), 0, stream)
      (keys, padded, pairs, size, stride);
    }
    sort_chunks(size, size);
  }
}

template <typename T>
cudaError_t launch_best_maxima(const HeatmapView<T>& view, const MaximumKey<T>* keys, const int* counts,
                               int64_t capacity, MaximumKey<T>* sorted, int64_t slots, int64_t n, int64_t* keypoints,
                               T* scores, bool* valid, cudaStream_t stream) {
  const int64_t padded = padded_slots(slots);
  DISK_LAUNCH((select_kernel<MaximumKey<T>>), dim3(static_cast<unsigned>(view.batch)), dim3(kSelectThreads), 0, stream)
  (keys, counts, capacity, sorted, padded, static_cast<int>(slots));
  sort_lists(sorted, view.batch, padded, stream);
  DISK_LAUNCH((write_maxima_kernel<T>), dim3(grid_size(view.batch * n, 256, INT32_MAX)), dim3(256), 0, stream)
  (view, sorted, counts, padded, static_cast<int>(slots), n, keypoints, scores, valid);
  return cudaGetLastError();
}

// One translation unit instantiates this for every element type.
#define DISK_INSTANTIATE_NMS_TOPK(T)                                                                               \
  template bool fits_tile<T>(const MaximumRule&);                                                                  \
  template int64_t find_maxima_scratch_bytes<T>(int64_t, int, int, const MaximumRule&);                            \
  template cudaError_t launch_find_maxima<T>(const HeatmapView<T>&, const MaximumRule&, void*, MaximumKey<T>*, int*, \
                                             int64_t, cudaStream_t);                                               \
  template cudaError_t launch_best_maxima<T>(const HeatmapView<T>&, const MaximumKey<T>*, const int*, int64_t,     \
                                             MaximumKey<T>*, int64_t, int64_t, int64_t*, T*, bool*, cudaStream_t);

}  // namespace disk_ops
