// Fills PackedDescriptors, and distances between them that are exact near zero.
#pragma once

#include <algorithm>

#include "packed_descriptors.h"
#include "product_tiles.cuh"

namespace disk_ops {

// One warp for each row.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    pack_descriptors_kernel(const T* __restrict__ desc, const bool* __restrict__ valid,  // [B, rows, D], [B, rows]
                            PackedDescriptors<computing<T>> packed, int64_t batch, int depth) {
  using C = computing<T>;
  constexpr int kWarps = kTileThreads / 32;
  const int lane = threadIdx.x % 32, padded = packed_depth(depth);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; row < batch * packed.rows;
       row += step) {
    C squares = 0;
    for (int k = lane; k < padded; k += 32) {
      const C number = k < depth ? to_number(desc[row * depth + k]) : C(0);
      packed.desc[row * padded + k] = number;
      squares = fma(number, number, squares);
    }
    for (int bit = 16; bit != 0; bit /= 2) squares += __shfl_xor_sync(~0u, squares, bit);
    if (lane != 0) continue;
    const C half = squares / 2, most = largest_finite<C>();  // infinite are those that are not valid alone
    packed.half_norms[row] = valid == nullptr || valid[row] ? (half > most ? most : half) : highest_number<C>();
  }
}

template <typename T>
void pack_descriptors(const T* desc, const bool* valid, const PackedDescriptors<computing<T>>& packed, int64_t batch,
                      int depth, cudaStream_t stream) {
  const int64_t blocks = (batch * packed.rows + kTileThreads / 32 - 1) / (kTileThreads / 32);
  DISK_LAUNCH((pack_descriptors_kernel<T>), dim3(static_cast<unsigned>(std::min<int64_t>(blocks, INT32_MAX))),
              dim3(kTileThreads), 0, stream)
  (desc, valid, packed, batch, depth);
}

// The distance of two packed descriptors from their product and half squared norms. For near-equal ones, whose product
// has lost the digits that matter, from their differences; also where the product is NaN, which infinite norms make.
template <typename C>
__device__ __forceinline__ C distance_of_pair(C product, C half_norm1, C half_norm2, const C* __restrict__ desc1,
                                              const C* __restrict__ desc2, int depth) {
  const C norms = half_norm1 + half_norm2, half = norms - product;
  if (half >= norms * C(0.05)) return sqrt(2 * half);
  C squares = 0;
#pragma unroll 1
  for (int k = 0; k < depth; k += kVectorOf<C>) {
    const auto a = load_vector<true>(desc1, k, depth), b = load_vector<true>(desc2, k, depth);
#pragma unroll
    for (int i = 0; i < kVectorOf<C>; ++i) squares = fma(a.at[i] - b.at[i], a.at[i] - b.at[i], squares);
  }
  return sqrt(squares);
}

template <typename C>
constexpr C kNoPair = -1;

// The distance of row1 of side1 and row2 of side2, all images counted; kNoPair where one is not valid.
template <typename C>
__device__ __forceinline__ C distance_of_rows(C product, const PackedDescriptors<C>& side1, int64_t row1,
                                              const PackedDescriptors<C>& side2, int64_t row2, int depth) {
  const C norm1 = side1.half_norms[row1], norm2 = side2.half_norms[row2];
  if (norm1 == highest_number<C>() || norm2 == highest_number<C>()) return kNoPair<C>;
  return distance_of_pair(product, norm1, norm2, side1.desc + row1 * depth, side2.desc + row2 * depth, depth);
}

// Turns the products of a thread's pairs into their distances; kNoPair where a descriptor is missing or not valid.

template <typename C, int kSide>
__device__ __forceinline__ void distances_of_tile(C (&products)[kSide][kSide], const ThreadTile<C, kSide>& mine,
                                                  const PackedDescriptors<C>& side1, int row0,
                                                  const PackedDescriptors<C>& side2, int column0, int64_t b,
                                                  int depth) {
  const int64_t first1 = b * side1.rows, first2 = b * side2.rows;
  C norms2[kSide];
#pragma unroll
  for (int j = 0; j < kSide; ++j) {
    const int column = column0 + mine.column(j);
    norms2[j] = column < side2.rows ? side2.half_norms[first2 + column] : highest_number<C>();
  }
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    const int row = row0 + mine.row(i);
    const C norm1 = row < side1.rows ? side1.half_norms[first1 + row] : highest_number<C>();
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      const bool missing = norm1 == highest_number<C>() || norms2[j] == highest_number<C>();
      products[i][j] = missing ? kNoPair<C>
                               : distance_of_pair(products[i][j], norm1, norms2[j],
                                                  side1.desc + (first1 + row) * depth,
                                                  side2.desc + (first2 + column0 + mine.column(j)) * depth, depth);
    }
  }
}

}  // namespace disk_ops
