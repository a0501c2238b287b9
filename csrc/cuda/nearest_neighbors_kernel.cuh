// The launcher of nearest_neighbors_kernel.h, and the kernels before and after the search: norms, exact distances.
// float64 has a search of its own, plainer, one direction at a time.
#pragma once

#include <algorithm>
#include <type_traits>

#include "nearest_neighbors_tiles.cuh"

namespace disk_ops {

// Half the squared norms, by the additions of the search. +inf for rows that are not valid.
template <typename T>
__global__ void __launch_bounds__(128)
    half_norms_kernel(Descriptors<T> desc, int64_t batch, int depth) {  // [B, rows, D]
  using C = Distance<T>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; row < batch * desc.rows;
       row += step) {
    const T* const from = desc.desc + row * depth;
    C squares = 0;
    for (int k = 0; k < depth; ++k) {
      const C number = to_number(from[k]);
      squares = fma(number, number, squares);
    }
    const bool valid = desc.valid == nullptr || desc.valid[row];
    desc.half_norms[row] = valid ? squares / 2 : highest_number<C>();
  }
}

struct Candidate {  // of the float64 search
  double t;
  int index;
};
DISK_HD bool operator<(const Candidate& a, const Candidate& b) {
  return a.t < b.t || (a.t == b.t && a.index < b.index);
}

constexpr int kScanTile = 32;
constexpr int kScanRows = 4;  // of a warp

// For each row of desc1 its neighbours in desc2. A block has kScanTile rows and goes through all columns, a warp
// kScanRows of the rows, a lane one column of a tile.
__global__ void __launch_bounds__(kTileThreads)
    scan_rows_kernel(Descriptors<double> desc1,  // [B, N, D]
                     Descriptors<double> desc2,  // [B, M, D]
                     int64_t batch, int depth) {
  __shared__ double rows[kScanTile][kScanTile + 1], columns[kScanTile][kScanTile + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row0 = static_cast<int>(blockIdx.x) * kScanTile;
  const Candidate missing{highest_number<double>(), INT32_MAX};
  for (int64_t b = blockIdx.y; b < batch; b += gridDim.y) {
    TopTwo<Candidate> tops[kScanRows];
    for (auto& top : tops) top = {missing, missing};
    for (int column0 = 0; column0 < desc2.rows; column0 += kScanTile) {
      double product[kScanRows] = {};
      for (int k0 = 0; k0 < depth; k0 += kScanTile) {
        for (int i = warp; i < kScanTile; i += kTileThreads / 32) {
          const int64_t row = row0 + i, column = column0 + i;
          const bool inside = k0 + lane < depth;
          rows[i][lane] =
              inside && row < desc1.rows ? desc1.desc[(b * desc1.rows + row) * depth + k0 + lane] : 0.0;
          columns[i][lane] =
              inside && column < desc2.rows ? desc2.desc[(b * desc2.rows + column) * depth + k0 + lane] : 0.0;
        }
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < kScanTile; ++k)
#pragma unroll
          for (int i = 0; i < kScanRows; ++i)
            product[i] = fma(rows[warp * kScanRows + i][k], columns[lane][k], product[i]);
        __syncthreads();
      }
      const int column = column0 + lane;
      if (column >= desc2.rows) continue;
      const double norm2 = desc2.half_norms[b * desc2.rows + column];
#pragma unroll
      for (int i = 0; i < kScanRows; ++i) {
        const int row = row0 + warp * kScanRows + i;
        if (row >= desc1.rows) continue;
        const double t = desc1.half_norms[b * desc1.rows + row] + norm2 - product[i];
        if (t < highest_number<double>()) tops[i].insert({t, column});
      }
    }
#pragma unroll
    for (int i = 0; i < kScanRows; ++i) {
      TopTwo<Candidate>& top = tops[i];
      for (int bit = 16; bit != 0; bit /= 2) {
        top.merge({{__shfl_xor_sync(~0u, top.best.t, bit), __shfl_xor_sync(~0u, top.best.index, bit)},
                   {__shfl_xor_sync(~0u, top.second.t, bit), __shfl_xor_sync(~0u, top.second.index, bit)}});
      }
      const int row = row0 + warp * kScanRows + i;
      if (lane != 0 || row >= desc1.rows) continue;
      const int64_t at = b * desc1.rows + row;
      if (top.best.index != INT32_MAX) desc1.best[at] = static_cast<NeighborKey>(top.best.index);
      if (top.second.index != INT32_MAX) desc1.second[at] = static_cast<NeighborKey>(top.second.index);
    }
  }
}

// A warp's distance between two descriptors, by differences, which lose nothing between near-equal ones.
template <typename T>
__device__ __forceinline__ Distance<T> warp_distance(const T* a, const T* b, int depth) {  // [D] both
  Distance<T> squares = 0;
  for (int k = threadIdx.x % 32; k < depth; k += 32) {
    const Distance<T> difference = to_number(a[k]) - to_number(b[k]);
    squares = fma(difference, difference, squares);
  }
  for (int bit = 16; bit != 0; bit /= 2) squares += __shfl_xor_sync(~0u, squares, bit);
  return sqrt(squares);
}

// One warp for each row: the exact distances of the two neighbours found, nearest first.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    write_neighbors_kernel(Descriptors<T> from, const T* __restrict__ to, int to_rows, int64_t batch,
                           int depth) {  // from [B, rows, D], to [B, to_rows, D]
  constexpr int kWarps = kTileThreads / 32;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; row < batch * from.rows;
       row += step) {
    const T* const mine = from.desc + row * depth;
    const T* const others = to + row / from.rows * to_rows * depth;
    const NeighborKey keys[2] = {from.best[row], from.second[row]};
    int64_t index[2] = {-1, -1};
    Distance<T> distance[2] = {highest_number<Distance<T>>(), highest_number<Distance<T>>()};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (keys[i] == kNoNeighbor) continue;
      index[i] = static_cast<uint32_t>(keys[i]);
      distance[i] = warp_distance(mine, others + index[i] * depth, depth);
    }
    const bool swap =
        index[1] >= 0 && (distance[1] < distance[0] || (distance[1] == distance[0] && index[1] < index[0]));
    const int lane = threadIdx.x % 32;
    if (lane < 2) {
      const bool second = (lane == 1) != swap;
      from.distances[2 * row + lane] = second ? distance[1] : distance[0];
      from.indices[2 * row + lane] = second ? index[1] : index[0];
    }
  }
}

template <typename T, int kSide>
void search_tiles(const Descriptors<T>& desc1, const Descriptors<T>& desc2, int64_t batch, int depth, bool aligned,
                  cudaStream_t stream) {
  constexpr int kRows = kTileRows<kSide>;
  const int row_tiles = tiles_of(desc1.rows, kRows), column_tiles = tiles_of(desc2.rows, kRows);
  const dim3 grid(static_cast<unsigned>(static_cast<int64_t>(row_tiles) * column_tiles),
                  static_cast<unsigned>(std::min<int64_t>(batch, 65535)));
  if (aligned) {
    DISK_LAUNCH((search_tiles_kernel<T, kSide, true>), grid, dim3(kTileThreads), 0, stream)
    (desc1, desc2, batch, depth, column_tiles);
  } else {
    DISK_LAUNCH((search_tiles_kernel<T, kSide, false>), grid, dim3(kTileThreads), 0, stream)
    (desc1, desc2, batch, depth, column_tiles);
  }
}

inline void scan_rows(const Descriptors<double>& desc1, const Descriptors<double>& desc2, int64_t batch, int depth,
                      cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(tiles_of(desc1.rows, kScanTile)),
                  static_cast<unsigned>(std::min<int64_t>(batch, 65535)));
  DISK_LAUNCH((scan_rows_kernel), grid, dim3(kTileThreads), 0, stream)(desc1, desc2, batch, depth);
}

template <typename T>
void search(const Descriptors<T>& desc1, const Descriptors<T>& desc2, int64_t batch, int depth, TileSize tile,
            cudaStream_t stream) {
  if constexpr (std::is_same_v<T, double>) {
    scan_rows(desc1, desc2, batch, depth, stream);
    scan_rows(desc2, desc1, batch, depth, stream);
  } else {
    const bool aligned = has_aligned_rows(desc1.desc, depth) && has_aligned_rows(desc2.desc, depth);
    if (tile == TileSize::kAutomatic) tile = fitting_tile_size(batch, desc1.rows, desc2.rows);
    if (tile == TileSize::kSmall) {
      search_tiles<T, 4>(desc1, desc2, batch, depth, aligned, stream);
    } else {
      search_tiles<T, 8>(desc1, desc2, batch, depth, aligned, stream);
    }
  }
}

template <typename T>
void half_norms(const Descriptors<T>& desc, int64_t batch, int depth, cudaStream_t stream) {
  const int64_t blocks = (batch * desc.rows + 127) / 128;
  DISK_LAUNCH((half_norms_kernel<T>), dim3(static_cast<unsigned>(std::min<int64_t>(blocks, INT32_MAX))), dim3(128), 0,
              stream)
  (desc, batch, depth);
}

template <typename T>
void write_neighbors(const Descriptors<T>& from, const Descriptors<T>& to, int64_t batch, int depth,
                     cudaStream_t stream) {
  const int64_t blocks = (batch * from.rows + kTileThreads / 32 - 1) / (kTileThreads / 32);
  DISK_LAUNCH((write_neighbors_kernel<T>), dim3(static_cast<unsigned>(std::min<int64_t>(blocks, INT32_MAX))),
              dim3(kTileThreads), 0, stream)
  (from, to.desc, to.rows, batch, depth);
}

template <typename T>
cudaError_t launch_nearest_neighbors(const Descriptors<T>& desc1, const Descriptors<T>& desc2, int64_t batch,
                                     int depth, TileSize tile, cudaStream_t stream) {
  if (batch != 0 && desc1.rows != 0 && desc2.rows != 0) {
    half_norms(desc1, batch, depth, stream);
    half_norms(desc2, batch, depth, stream);
    search(desc1, desc2, batch, depth, tile, stream);
  }
  if (batch != 0 && desc1.rows != 0) write_neighbors(desc1, desc2, batch, depth, stream);
  if (batch != 0 && desc2.rows != 0) write_neighbors(desc2, desc1, batch, depth, stream);
  return cudaGetLastError();
}

// One translation unit instantiates this for every element type.
#define DISK_INSTANTIATE_NEAREST_NEIGHBORS(T)                                                                      \
  template cudaError_t launch_nearest_neighbors<T>(const Descriptors<T>&, const Descriptors<T>&, int64_t, int, \
                                                   TileSize, cudaStream_t);

}  // namespace disk_ops
