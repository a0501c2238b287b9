// The search for neighbours in both directions: one matrix product in tiles whose results stay in registers.
//
// Pairs are ranked by t = (|a|² + |b|²) / 2 - a·b, half their squared distance. A block computes t for a tile of rows
// and columns (product_tiles.cuh) and reduces it to the two smallest keys of each of its rows and columns: in the
// thread, across lanes and warps (SharedReduction), and across blocks by integer atomics in global memory.
// Products and norms add up in the same order everywhere, by fused multiply-adds over ascending k, so that equal
// descriptors have equal keys wherever they are, and t = 0 for a pair of them.
#pragma once

#include "nearest_neighbors_kernel.h"
#include "product_tiles.cuh"

namespace disk_ops {

using TopKeys = TopTwo<NeighborKey>;

__device__ __forceinline__ NeighborKey neighbor_key(float t, int index) {
  return static_cast<NeighborKey>(ordered_bits(t)) << 32 | static_cast<unsigned>(index);
}

// The two smallest of kSide values, given in ascending order of index_of(j). +inf and NaN are no neighbours.
template <int kSide, typename ValueAt, typename IndexOf>
__device__ __forceinline__ TopKeys top_of_thread(ValueAt t_at, IndexOf index_of) {
  float best = highest_number<float>(), second = best;
  int best_at = -1, second_at = -1;
#pragma unroll
  for (int j = 0; j < kSide; ++j) {
    const float t = t_at(j);
    if (t < best) {
      second = best, second_at = best_at;
      best = t, best_at = j;
    } else if (t < second) {
      second = t, second_at = j;
    }
  }
  return {best_at < 0 ? kNoNeighbor : neighbor_key(best, index_of(best_at)),
          second_at < 0 ? kNoNeighbor : neighbor_key(second, index_of(second_at))};
}

__device__ __forceinline__ TopKeys from_lane(const TopKeys& top, int bit) {
  return {__shfl_xor_sync(~0u, top.best, bit), __shfl_xor_sync(~0u, top.second, bit)};
}

// Lets a row's two smallest keys of a tile compete with those of other tiles. Every key but the smallest of all
// reaches `second`, whichever block comes first: either it loses against *best, or it is pushed out of it.
__device__ __forceinline__ void offer(const TopKeys& top, NeighborKey* best, NeighborKey* second) {
  const NeighborKey keys[2] = {top.best, top.second};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (keys[i] >= *static_cast<const volatile NeighborKey*>(second)) return;  // it only gets smaller
    const NeighborKey loser = larger(atomicMin(best, keys[i]), keys[i]);
    if (loser != kNoNeighbor) atomicMin(second, loser);
  }
}

template <typename T, int kSide>
__device__ __forceinline__ void reduce_tile(float (&t)[kSide][kSide], const ThreadTile<float, kSide>& mine, int row0,
                                            int column0, SharedReduction<TopKeys, kTileRows<kSide>>& shared,
                                            const Descriptors<T>& desc1, const Descriptors<T>& desc2, int64_t b) {
  constexpr int kRows = kTileRows<kSide>;
  TopKeys tops[kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i)
    tops[i] = top_of_thread<kSide>([&](int j) { return t[i][j]; }, [&](int j) { return column0 + mine.column(j); });
  shared.put_rows(tops, mine);
#pragma unroll
  for (int j = 0; j < kSide; ++j)
    tops[j] = top_of_thread<kSide>([&](int i) { return t[i][j]; }, [&](int i) { return row0 + mine.row(i); });
  shared.put_columns(tops, mine);
  __syncthreads();

  const int at = static_cast<int>(threadIdx.x) % kRows;
  if (threadIdx.x < kRows && row0 + at < desc1.rows) {
    const int64_t row = b * desc1.rows + row0 + at;
    offer(shared.row(at), desc1.best + row, desc1.second + row);
  } else if (threadIdx.x >= kRows && threadIdx.x < 2 * kRows && column0 + at < desc2.rows) {
    const int64_t row = b * desc2.rows + column0 + at;
    offer(shared.column(at), desc2.best + row, desc2.second + row);
  }
}

// One block of kTileThreads for each tile; gridDim.y of the images at a time.
template <typename T, int kSide, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, kSide == 8 ? 2 : 3)
    search_tiles_kernel(Descriptors<T> desc1,  // [B, N, D]
                        Descriptors<T> desc2,  // [B, M, D]
                        int64_t batch, int depth, int column_tiles) {
  constexpr int kRows = kTileRows<kSide>;
  union Shared {
    ProductTiles<float, kSide> tiles;
    SharedReduction<TopKeys, kRows> tops;
  };
  alignas(16) __shared__ Shared shared;
  const ThreadTile<float, kSide> mine;
  const int row0 = blockIdx.x / column_tiles * kRows, column0 = blockIdx.x % column_tiles * kRows;
  for (int64_t b = blockIdx.y; b < batch; b += gridDim.y) {
    float t[kSide][kSide] = {};
    shared.tiles.template multiply<kAligned>(desc1.desc + b * desc1.rows * depth, row0, desc1.rows,
                                             desc2.desc + b * desc2.rows * depth, column0, desc2.rows, depth, mine, t);

    float norms2[kSide];
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      const int column = column0 + mine.column(j);
      norms2[j] = column < desc2.rows ? desc2.half_norms[b * desc2.rows + column] : highest_number<float>();
    }
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      const int row = row0 + mine.row(i);
      const float norm1 = row < desc1.rows ? desc1.half_norms[b * desc1.rows + row] : highest_number<float>();
#pragma unroll
      for (int j = 0; j < kSide; ++j) t[i][j] = norm1 + norms2[j] - t[i][j];
    }
    reduce_tile<T, kSide>(t, mine, row0, column0, shared.tops, desc1, desc2, b);
    __syncthreads();  // shared memory is used for the next image
  }
}

}  // namespace disk_ops
