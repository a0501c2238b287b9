// What all searches and sums over pairs of descriptors are built from: the product of a tile of rows and a tile of
// columns in registers, and the reduction of what a block has for each pair to its rows and columns.
//
// A block of 256 threads has kSide x kSide pairs a thread. Products add up in the same order everywhere, by fused
// multiply-adds over ascending k, so that the product of two rows doesn't depend on where in which tile they are, nor
// on which of them is the row.
#pragma once

#include "launch.cuh"
#include "number.cuh"
#include "product_tiles.h"

namespace disk_ops {

constexpr int kTileThreads = 256;  // 8 warps: 2 in the direction of rows, 4 in that of columns
constexpr int kLaneRows = 8;       // lanes of a warp in the direction of rows; 4 in that of columns
constexpr int kLaneColumns = 4;
static_assert(kTileRows<1> == 2 * kLaneRows && kTileRows<1> == 4 * kLaneColumns, "2 x 4 warps");

// As many elements as a thread moves at a time: 16 bytes of what they become.
template <typename T>
constexpr int kVectorOf = 16 / sizeof(computing<T>);
template <typename T>
struct alignas(kVectorOf<T> * sizeof(T)) Vector {
  T at[kVectorOf<T>];
};

// Whether rows can be read a vector at a time.
template <typename T>
bool has_aligned_rows(const T* desc, int depth) {
  return depth % kVectorOf<T> == 0 && reinterpret_cast<uintptr_t>(desc) % sizeof(Vector<T>) == 0;
}

// The elements from k of a row of `depth` elements; 0 beyond it, or for a row that is not there (null).
template <bool kAligned, typename T>
__device__ __forceinline__ Vector<computing<T>> load_vector(const T* row, int k, int depth) {
  Vector<computing<T>> out = {};
  if (row == nullptr || k >= depth) return out;
  if constexpr (kAligned) {
    const auto in = *reinterpret_cast<const Vector<T>*>(row + k);
#pragma unroll
    for (int i = 0; i < kVectorOf<T>; ++i) out.at[i] = to_number(in.at[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kVectorOf<T>; ++i)
      if (k + i < depth) out.at[i] = to_number(row[k + i]);
  }
  return out;
}

// A tile of kRows descriptors by kDepth dimensions, dimension-major: one or two vectors for each thread of a block.
// Places are permuted, differently for the dimensions of each vector, so that a warp that stores rows meets no bank
// more often than it must.
template <typename C, int kRows>
struct SharedTile {
  static constexpr int kDepth = kRows == 128 ? 8 : 16, kVector = kVectorOf<C>, kPerRow = kDepth / kVector;
  C number[kDepth][kRows];

  static __device__ __forceinline__ int place(int k, int row) {
    return row ^ (k / kVector * (128 / static_cast<int>(sizeof(C)) / kPerRow));
  }
  __device__ __forceinline__ void store(int k, int row, const Vector<C>& vector) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) number[k + i][place(k, row)] = vector.at[i];
  }
  __device__ __forceinline__ const Vector<C>& load(int k, int row) const {
    return *reinterpret_cast<const Vector<C>*>(&number[k][place(k, row)]);
  }
};

// The part of a tile that a thread carries from global to shared memory.
template <typename C, int kRows>
struct Carried {
  using Tile = SharedTile<C, kRows>;
  static constexpr int kVector = kVectorOf<C>, kPerRow = Tile::kPerRow, kVectors = kRows * kPerRow / kTileThreads;
  Vector<C> vector[kVectors];

  template <bool kAligned, typename T>
  __device__ __forceinline__ void fetch(const T* desc, int first, int rows, int k0, int depth) {  // desc [rows, depth]
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = threadIdx.x + i * kTileThreads, row = first + at / kPerRow;
      const T* const from = row < rows ? desc + static_cast<int64_t>(row) * depth : nullptr;
      vector[i] = load_vector<kAligned>(from, k0 + at % kPerRow * kVector, depth);
    }
  }
  __device__ __forceinline__ void put(Tile& tile) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = threadIdx.x + i * kTileThreads;
      tile.store(at % kPerRow * kVector, at / kPerRow, vector[i]);
    }
  }
};

// Rows and columns of a thread, kSide of each, in groups of a vector that are next to each other.
template <typename C, int kSide>
struct ThreadTile {
  static constexpr int kVector = kVectorOf<C>;
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

// Two buffers for each operand: while one is multiplied, the other is filled.
template <typename C, int kSide>
struct ProductTiles {
  static constexpr int kRows = kTileRows<kSide>, kDepth = SharedTile<C, kRows>::kDepth, kVector = kVectorOf<C>;
  SharedTile<C, kRows> rows[2], columns[2];

  // Adds the products of a thread's rows and columns. All threads of the block are at the same place, before (nobody
  // else uses this memory any more) and after (it may be used for something else).
  template <bool kAligned, typename T>
  __device__ __forceinline__ void multiply(const T* desc1, int row0, int rows1,     // [rows1, depth]
                                           const T* desc2, int column0, int rows2,  // [rows2, depth]
                                           int depth, const ThreadTile<C, kSide>& mine, C (&product)[kSide][kSide]) {
    Carried<C, kRows> row_part, column_part;
    row_part.template fetch<kAligned>(desc1, row0, rows1, 0, depth);
    column_part.template fetch<kAligned>(desc2, column0, rows2, 0, depth);
    row_part.put(rows[0]), column_part.put(columns[0]);
    __syncthreads();
    int buffer = 0;
    for (int k0 = 0; k0 < depth; k0 += kDepth) {
      const bool more = k0 + kDepth < depth;
      if (more) {
        row_part.template fetch<kAligned>(desc1, row0, rows1, k0 + kDepth, depth);
        column_part.template fetch<kAligned>(desc2, column0, rows2, k0 + kDepth, depth);
      }
      multiply_add(buffer, mine, product);
      buffer ^= 1;
      if (more) row_part.put(rows[buffer]), column_part.put(columns[buffer]);
#if !defined(DISK_PLANT_MISSING_BARRIER)
      __syncthreads();
#endif
    }
  }

 private:
  __device__ __forceinline__ void multiply_add(int buffer, const ThreadTile<C, kSide>& mine,
                                               C (&product)[kSide][kSide]) const {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      Vector<C> a[kSide / kVector], b[kSide / kVector];
#pragma unroll
      for (int g = 0; g < kSide / kVector; ++g) {
        a[g] = rows[buffer].load(k, mine.row(g * kVector));
        b[g] = columns[buffer].load(k, mine.column(g * kVector));
      }
#pragma unroll
      for (int i = 0; i < kSide; ++i)
#pragma unroll
        for (int j = 0; j < kSide; ++j)
          product[i][j] = fma(a[i / kVector].at[i % kVector], b[j / kVector].at[j % kVector], product[i][j]);
    }
  }
};

// Merges kCount values across the lanes that differ in the bits from kBit down to kLastBit. Each exchange halves the
// values that a lane goes on with. Returns which of them is left in values[0] (the first of those left, if more).
// A Value has merge(), and from_lane(value, bit) is that of the lane which differs in `bit`.
template <int kCount, int kBit, int kLastBit, typename Value, int kSide>
__device__ __forceinline__ int merge_across_lanes(Value (&values)[kSide]) {
  constexpr int kKept = kCount > 1 ? kCount / 2 : 1;
  const bool upper = kCount > 1 && (threadIdx.x & kBit) != 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    Value kept = values[i], given = values[i];
    if constexpr (kCount > 1) {
      kept = upper ? values[i + kKept] : values[i];
      given = upper ? values[i] : values[i + kKept];
    }
    kept.merge(from_lane(given, kBit));
    values[i] = kept;
  }
  const int first = upper ? kKept : 0;
  if constexpr (kBit > kLastBit) {
    return first + merge_across_lanes<kKept, kBit / 2, kLastBit>(values);
  } else {
    return first;
  }
}

// The values of a block's rows and columns: merged across the lanes of each warp, then across warps.
template <typename Value, int kRows>
struct SharedReduction {
  Value rows[4][kRows];     // of each warp in the direction of columns
  Value columns[2][kRows];  // of each warp in the direction of rows

  template <int kSide, typename Tile>
  __device__ __forceinline__ void put_rows(Value (&values)[kSide], const Tile& mine) {
    const int i0 = merge_across_lanes<kSide, kLaneColumns / 2, 1>(values), warp = threadIdx.x / 32;
    if (!is_spare<kSide, kLaneColumns>(threadIdx.x))
#pragma unroll
      for (int i = 0; i < kept<kSide, kLaneColumns>(); ++i) rows[warp % 4][mine.row(i0 + i)] = values[i];
  }
  template <int kSide, typename Tile>
  __device__ __forceinline__ void put_columns(Value (&values)[kSide], const Tile& mine) {
    const int j0 = merge_across_lanes<kSide, 16, kLaneColumns>(values), warp = threadIdx.x / 32;
    if (!is_spare<kSide, kLaneRows>(threadIdx.x / kLaneColumns))
#pragma unroll
      for (int j = 0; j < kept<kSide, kLaneRows>(); ++j) columns[warp / 4][mine.column(j0 + j)] = values[j];
  }
  __device__ __forceinline__ Value row(int at) const {
    Value value = rows[0][at];
    for (int i = 1; i < 4; ++i) value.merge(rows[i][at]);
    return value;
  }
  __device__ __forceinline__ Value column(int at) const {
    Value value = columns[0][at];
    value.merge(columns[1][at]);
    return value;
  }

 private:
  // How many of kSide values a lane is left with, and whether it is one of several that are left with the same.
  template <int kSide, int kLanes>
  static constexpr int kept() {
    return kSide > kLanes ? kSide / kLanes : 1;
  }
  template <int kSide, int kLanes>
  static __device__ __forceinline__ bool is_spare(int lane) {
    constexpr int kAlike = kSide < kLanes ? kLanes / kSide : 1;
    return lane % kAlike != 0;
  }
};

}  // namespace disk_ops
