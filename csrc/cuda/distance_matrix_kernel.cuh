// distance_matrix: products in tiles, turned into distances where they are, in registers.
#pragma once

#include <algorithm>

#include "distance_matrix_kernel.h"
#include "packed_descriptors.cuh"

namespace disk_ops {

// One block of kTileThreads for each tile; gridDim.y of the images at a time.
template <typename C>
__global__ void __launch_bounds__(kTileThreads, 3)
    distance_matrix_kernel(PackedDescriptors<C> side1, PackedDescriptors<C> side2, int64_t batch, int depth,
                           int column_tiles, C* __restrict__ distances) {  // [B, N, M]
  constexpr int kSide = kPairSide<C>, kRows = kTileRows<kSide>, kVector = kVectorOf<C>;
  alignas(16) __shared__ ProductTiles<C, kSide> tiles;
  const ThreadTile<C, kSide> mine;
  const int row0 = blockIdx.x / column_tiles * kRows, column0 = blockIdx.x % column_tiles * kRows;
  for (int64_t b = blockIdx.y; b < batch; b += gridDim.y) {
    const C* const desc1 = side1.desc + b * side1.rows * depth;
    const C* const desc2 = side2.desc + b * side2.rows * depth;
    C t[kSide][kSide] = {};
    tiles.template multiply<true>(desc1, row0, side1.rows, desc2, column0, side2.rows, depth, mine, t);
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      const int row = row0 + mine.row(i);
      if (row >= side1.rows) continue;
      const C norm1 = side1.half_norms[b * side1.rows + row];
      C* const out = distances + (b * side1.rows + row) * side2.rows;
#pragma unroll
      for (int g = 0; g < kSide; g += kVector) {
        const int first = column0 + mine.column(g);
        Vector<C> found = {};
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const int column = first + j;
          if (column < side2.rows)
            found.at[j] = distance_of_pair(t[i][g + j], norm1, side2.half_norms[b * side2.rows + column],
                                           desc1 + static_cast<int64_t>(row) * depth,
                                           desc2 + static_cast<int64_t>(column) * depth, depth);
        }
        if (side2.rows % kVector == 0 && first < side2.rows) {
          *reinterpret_cast<Vector<C>*>(out + first) = found;
        } else {
#pragma unroll
          for (int j = 0; j < kVector; ++j)
            if (first + j < side2.rows) out[first + j] = found.at[j];
        }
      }
    }
    __syncthreads();  // shared memory is used for the next image
  }
}

template <typename T>
cudaError_t launch_distance_matrix(const T* desc1, const T* desc2, const PackedDescriptors<computing<T>>& packed1,
                                   const PackedDescriptors<computing<T>>& packed2, int64_t batch, int depth,
                                   computing<T>* distances, cudaStream_t stream) {
  if (batch == 0 || packed1.rows == 0 || packed2.rows == 0) return cudaSuccess;
  using C = computing<T>;
  pack_descriptors(desc1, nullptr, packed1, batch, depth, stream);
  pack_descriptors(desc2, nullptr, packed2, batch, depth, stream);
  const int row_tiles = tiles_of(packed1.rows, kPairTile<C>), column_tiles = tiles_of(packed2.rows, kPairTile<C>);
  const dim3 grid(static_cast<unsigned>(static_cast<int64_t>(row_tiles) * column_tiles),
                  static_cast<unsigned>(std::min<int64_t>(batch, 65535)));
  DISK_LAUNCH((distance_matrix_kernel<C>), grid, dim3(kTileThreads), 0, stream)
  (packed1, packed2, batch, packed_depth(depth), column_tiles, distances);
  return cudaGetLastError();
}

// One translation unit instantiates this for every element type.
#define DISK_INSTANTIATE_DISTANCE_MATRIX(T)                                                                     \
  template cudaError_t launch_distance_matrix<T>(const T*, const T*, const PackedDescriptors<computing<T>>&,   \
                                                 const PackedDescriptors<computing<T>>&, int64_t, int,           \
                                                 computing<T>*, cudaStream_t);

}  // namespace disk_ops
