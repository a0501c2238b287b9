// The search for neighbours in both directions: one matrix product in tiles whose results stay in registers.
//
// Pairs are ranked by t = (|a|² + |b|²) / 2 - a·b, half their squared distance. A block computes t for a tile of rows
// and columns and reduces it to the two smallest keys of each of its rows and columns: in the thread, across lanes by
// halving exchanges, across warps through shared memory, and across blocks by integer atomics in global memory.
// Products and norms add up in the same order everywhere, by fused multiply-adds over ascending k, so that equal
// descriptors have equal keys wherever they are, and t = 0 for a pair of them.
#pragma once

#include "launch.cuh"
#include "nearest_neighbors_kernel.h"
#include "number.cuh"

namespace disk_ops {

constexpr int kSearchThreads = 256;  // 8 warps: 2 in the direction of rows, 4 in that of columns
constexpr int kLaneRows = 8;         // lanes of a warp in the direction of rows; 4 in that of columns
constexpr int kLaneColumns = 4;
constexpr int kVector = 4;

template <typename T>
struct alignas(kVector * sizeof(T)) Vector {
  T at[kVector];
};

// Elements k to k + 3 of a row of `depth` elements; 0 beyond it, or for a row that is not there (null).
template <bool kAligned, typename T>
__device__ __forceinline__ Vector<float> load_vector(const T* row, int k, int depth) {
  Vector<float> out = {{0.0f, 0.0f, 0.0f, 0.0f}};
  if (row == nullptr || k >= depth) return out;
  if constexpr (kAligned) {
    const auto in = *reinterpret_cast<const Vector<T>*>(row + k);
#pragma unroll
    for (int i = 0; i < kVector; ++i) out.at[i] = to_number(in.at[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (k + i < depth) out.at[i] = to_number(row[k + i]);
  }
  return out;
}

// A tile of kRows descriptors by kDepth dimensions, dimension-major: one or two vectors for each thread of a block.
// Places are permuted, differently for each four dimensions, so that a warp meets no bank twice when it stores rows.
template <int kRows>
struct SharedTile {
  static constexpr int kDepth = kRows == 128 ? 8 : 16;
  float number[kDepth][kRows];

  static __device__ __forceinline__ int place(int k, int row) { return row ^ (k / kVector * (128 / kDepth)); }
  __device__ __forceinline__ void store(int k, int row, const Vector<float>& vector) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) number[k + i][place(k, row)] = vector.at[i];
  }
  __device__ __forceinline__ const Vector<float>& load(int k, int row) const {
    return *reinterpret_cast<const Vector<float>*>(&number[k][place(k, row)]);
  }
};

// The part of a tile that a thread carries from global to shared memory.
template <int kRows>
struct Carried {
  static constexpr int kPerRow = SharedTile<kRows>::kDepth / kVector;
  static constexpr int kVectors = kRows * kPerRow / kSearchThreads;
  Vector<float> vector[kVectors];

  template <bool kAligned, typename T>
  __device__ __forceinline__ void fetch(const T* desc, int first, int rows, int k0, int depth) {  // desc [rows, depth]
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = threadIdx.x + i * kSearchThreads, row = first + at / kPerRow;
      const T* const from = row < rows ? desc + static_cast<int64_t>(row) * depth : nullptr;
      vector[i] = load_vector<kAligned>(from, k0 + at % kPerRow * kVector, depth);
    }
  }
  __device__ __forceinline__ void put(SharedTile<kRows>& tile) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = threadIdx.x + i * kSearchThreads;
      tile.store(at % kPerRow * kVector, at / kPerRow, vector[i]);
    }
  }
};

// Rows and columns of a thread, kSide of each, in groups of four that are next to each other.
template <int kSide>
struct ThreadTile {
  static constexpr int kRows = 2 * kLaneRows * kSide;  // of the block; as many columns
  int first_row, first_column;

  __device__ __forceinline__ ThreadTile() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    first_row = warp / 4 * (kLaneRows * kSide) + lane / kLaneColumns * kVector;
    first_column = warp % 4 * (kLaneColumns * kSide) + lane % kLaneColumns * kVector;
  }
  __device__ __forceinline__ int row(int i) const {
    return first_row + i / kVector * (kLaneRows * kVector) + i % kVector;
  }
  __device__ __forceinline__ int column(int j) const {
    return first_column + j / kVector * (kLaneColumns * kVector) + j % kVector;
  }
};

template <int kSide>
__device__ __forceinline__ void multiply_add(const SharedTile<ThreadTile<kSide>::kRows>& rows,
                                             const SharedTile<ThreadTile<kSide>::kRows>& columns,
                                             const ThreadTile<kSide>& mine, float (&product)[kSide][kSide]) {
#pragma unroll
  for (int k = 0; k < SharedTile<ThreadTile<kSide>::kRows>::kDepth; ++k) {
    Vector<float> a[kSide / kVector], b[kSide / kVector];
#pragma unroll
    for (int g = 0; g < kSide / kVector; ++g) {
      a[g] = rows.load(k, mine.row(g * kVector));
      b[g] = columns.load(k, mine.column(g * kVector));
    }
#pragma unroll
    for (int i = 0; i < kSide; ++i)
#pragma unroll
      for (int j = 0; j < kSide; ++j)
        product[i][j] = fmaf(a[i / kVector].at[i % kVector], b[j / kVector].at[j % kVector], product[i][j]);
  }
}

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

// Merges kCount sets across the lanes that differ in the bits from kBit down to kLastBit. Each exchange halves the
// sets that a lane goes on with. Returns which of them is left in tops[0] (the first of those left, if more).
template <int kCount, int kBit, int kLastBit, int kSide>
__device__ __forceinline__ int merge_across_lanes(TopKeys (&tops)[kSide]) {
  constexpr int kKept = kCount > 1 ? kCount / 2 : 1;
  const bool upper = kCount > 1 && (threadIdx.x & kBit) != 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    TopKeys kept = tops[i], given = tops[i];
    if constexpr (kCount > 1) {
      kept = upper ? tops[i + kKept] : tops[i];
      given = upper ? tops[i] : tops[i + kKept];
    }
    kept.merge({__shfl_xor_sync(~0u, given.best, kBit), __shfl_xor_sync(~0u, given.second, kBit)});
    tops[i] = kept;
  }
  const int first = upper ? kKept : 0;
  if constexpr (kBit > kLastBit) {
    return first + merge_across_lanes<kKept, kBit / 2, kLastBit>(tops);
  } else {
    return first;
  }
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

template <int kRows>
struct SharedTops {
  TopKeys rows[4][kRows];     // of each warp in the direction of columns
  TopKeys columns[2][kRows];  // of each warp in the direction of rows
};

template <typename T, int kSide>
__device__ __forceinline__ void reduce_tile(float (&t)[kSide][kSide], const ThreadTile<kSide>& mine, int row0,
                                            int column0, SharedTops<ThreadTile<kSide>::kRows>& shared,
                                            const Descriptors<T>& desc1, const Descriptors<T>& desc2, int64_t b) {
  constexpr int kRows = ThreadTile<kSide>::kRows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  TopKeys tops[kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i)
    tops[i] = top_of_thread<kSide>([&](int j) { return t[i][j]; }, [&](int j) { return column0 + mine.column(j); });
  const int i0 = merge_across_lanes<kSide, kLaneColumns / 2, 1>(tops);
#pragma unroll
  for (int i = 0; i < kSide / kLaneColumns; ++i) shared.rows[warp % 4][mine.row(i0 + i)] = tops[i];
#pragma unroll
  for (int j = 0; j < kSide; ++j)
    tops[j] = top_of_thread<kSide>([&](int i) { return t[i][j]; }, [&](int i) { return row0 + mine.row(i); });
  const int j0 = merge_across_lanes<kSide, 16, kLaneColumns>(tops);
  if (kSide >= kLaneRows || lane / kLaneColumns % 2 == 0) shared.columns[warp / 4][mine.column(j0)] = tops[0];
  __syncthreads();

  const int at = static_cast<int>(threadIdx.x) % kRows;
  if (threadIdx.x < kRows && row0 + at < desc1.rows) {
    TopKeys top = shared.rows[0][at];
    for (int i = 1; i < 4; ++i) top.merge(shared.rows[i][at]);
    const int64_t row = b * desc1.rows + row0 + at;
    offer(top, desc1.best + row, desc1.second + row);
  } else if (threadIdx.x >= kRows && threadIdx.x < 2 * kRows && column0 + at < desc2.rows) {
    TopKeys top = shared.columns[0][at];
    top.merge(shared.columns[1][at]);
    const int64_t row = b * desc2.rows + column0 + at;
    offer(top, desc2.best + row, desc2.second + row);
  }
}

// One block of kSearchThreads for each tile; gridDim.y of the images at a time.
template <typename T, int kSide, bool kAligned>
__global__ void __launch_bounds__(kSearchThreads, kSide == 8 ? 2 : 3)
    search_tiles_kernel(Descriptors<T> desc1,  // [B, N, D]
                        Descriptors<T> desc2,  // [B, M, D]
                        int64_t batch, int depth, int column_tiles) {
  using Mine = ThreadTile<kSide>;
  constexpr int kRows = Mine::kRows, kDepth = SharedTile<kRows>::kDepth;
  struct Tiles {
    SharedTile<kRows> rows[2], columns[2];
  };
  union Shared {
    Tiles tiles;
    SharedTops<kRows> tops;
  };
  alignas(16) __shared__ Shared shared;
  const Mine mine;
  const int row0 = blockIdx.x / column_tiles * kRows, column0 = blockIdx.x % column_tiles * kRows;
  for (int64_t b = blockIdx.y; b < batch; b += gridDim.y) {
    const T* const from1 = desc1.desc + b * desc1.rows * depth;
    const T* const from2 = desc2.desc + b * desc2.rows * depth;
    float t[kSide][kSide] = {};
    Carried<kRows> rows, columns;
    rows.template fetch<kAligned>(from1, row0, desc1.rows, 0, depth);
    columns.template fetch<kAligned>(from2, column0, desc2.rows, 0, depth);
    rows.put(shared.tiles.rows[0]), columns.put(shared.tiles.columns[0]);
    __syncthreads();
    int buffer = 0;
    for (int k0 = 0; k0 < depth; k0 += kDepth) {
      const bool more = k0 + kDepth < depth;
      if (more) {
        rows.template fetch<kAligned>(from1, row0, desc1.rows, k0 + kDepth, depth);
        columns.template fetch<kAligned>(from2, column0, desc2.rows, k0 + kDepth, depth);
      }
      multiply_add<kSide>(shared.tiles.rows[buffer], shared.tiles.columns[buffer], mine, t);
      buffer ^= 1;
      if (more) rows.put(shared.tiles.rows[buffer]), columns.put(shared.tiles.columns[buffer]);
#if !defined(DISK_PLANT_MISSING_BARRIER)
      __syncthreads();
#endif
    }

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
