// Launchers of nms_topk: raw pointers and sizes, no torch. nms_topk_launch.h allocates for them and calls them.
//
// 1. find_maxima appends a key for each local maximum to its image's list, in no particular order.
// 2. best_maxima selects the n smallest keys of each image, sorts them and writes the results.
// A key holds the score, descending, then the raster index, ascending: distinct for every pixel, so that the results
// don't depend on the order in which blocks run.
#pragma once

#include <cstdint>

#include "heatmap_view.h"
#include "number.h"
#include "runtime.h"

namespace disk_ops {

struct MaximumRule {
  int radius_x, radius_y;  // half windows, less than width and height
  int border;              // pixels nearer to an edge are never chosen
  double threshold;        // a maximum is strictly above; -inf: none
};

struct alignas(16) WideKey {  // (score, raster index) of float64 heatmaps
  uint64_t score;
  uint32_t pixel, unused;
};
template <typename T>
struct MaximumKeyOf {
  using type = unsigned long long;  // score in the high half, raster index in the low one
};
template <>
struct MaximumKeyOf<double> {
  using type = WideKey;
};
template <typename T>
using MaximumKey = typename MaximumKeyOf<T>::type;

// Whether find_maxima works on tiles in shared memory. Larger windows go through scratch memory.
template <typename T>
bool fits_tile(const MaximumRule& rule);

// Bytes of scratch memory for find_maxima: 0 for windows that fit a tile.
template <typename T>
int64_t find_maxima_scratch_bytes(int64_t batch, int height, int width, const MaximumRule& rule);

template <typename T>
cudaError_t launch_find_maxima(const HeatmapView<T>& view, const MaximumRule& rule,
                               void* scratch,        // find_maxima_scratch_bytes
                               MaximumKey<T>* keys,  // [B, capacity]
                               int* counts,          // [B], zero
                               int64_t capacity, cudaStream_t stream);

// The length of lists that best_maxima sorts: the power of two from `slots`, the number of keys that it keeps.
inline int64_t padded_slots(int64_t slots) {
  int64_t padded = 1;
  while (padded < slots) padded *= 2;
  return padded;
}

template <typename T>
cudaError_t launch_best_maxima(const HeatmapView<T>& view,
                               const MaximumKey<T>* keys,  // [B, capacity]
                               const int* counts,          // [B]
                               int64_t capacity,
                               MaximumKey<T>* sorted,  // [B, padded_slots(slots)]
                               int64_t slots,          // min(n, capacity)
                               int64_t n,
                               int64_t* keypoints,  // [B, n, 2] xy
                               T* scores,           // [B, n]
                               bool* valid,         // [B, n]
                               cudaStream_t stream);

}  // namespace disk_ops
