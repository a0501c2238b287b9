// _match_backward: gradients to descriptors by two products a tile. The first gives distances, hence the pull of each
// pair: -theta dA / d. The second adds up pull_ij b_j over columns: grad_i = a_i sum_j pull_ij - sum_j pull_ij b_j.
//
// A block has one row tile, a range of column tiles and a chunk of the dimensions, whose sums stay in registers. The
// ranges are added up by a second kernel, in their order. The gradient to desc2 comes from the same kernel with the
// sides swapped.
#pragma once

#include "match_pairs.cuh"

namespace disk_ops {

template <typename C>
struct PairGradient {
  C logit, probability, reward;  // gradients to the logit and the reward, and P
};

template <typename C>
__device__ __forceinline__ PairGradient<C> gradient_of_pair(const MatchRule<C>& rule, C logit,
                                                            const MatchPoint<C>& point1, const MatchPoint<C>& point2,
                                                            int64_t b, int i, int j) {
  const C row = probability_of(logit - point1.logsumexp), column = probability_of(logit - point2.logsumexp);
  const C probability = row * column;
  C weight = 0;
  if (rule.weighted)
    weight = fma(point1.weight + point2.weight, reward_of_pair(rule, point1, point2, b, i, j), point1.weight0);
  return {2 * probability * weight - row * point1.sum - column * point2.sum, probability,
          probability * (point1.weight + point2.weight)};
}

// The pulls of a tile by column, then row. Places are permuted as in SharedTile: a warp that stores four columns of a
// lane each meets no bank twice.
template <typename C, int kRows>
struct SharedPulls {
  static constexpr int kVector = kVectorOf<C>;
  C number[kRows][kRows];

  static __device__ __forceinline__ int place(int column, int row) {
    return row ^ (column / kVector % kLaneColumns * (2 * kVector));
  }
  __device__ __forceinline__ Vector<C>& at(int column, int row) {
    return *reinterpret_cast<Vector<C>*>(&number[column][place(column, row)]);
  }
  template <int kSide>
  __device__ __forceinline__ void store(const C (&numbers)[kSide][kSide], const ThreadTile<C, kSide>& mine) {
#pragma unroll
    for (int j = 0; j < kSide; ++j)
#pragma unroll
      for (int g = 0; g < kSide; g += kVector) {
        Vector<C> vector;
#pragma unroll
        for (int i = 0; i < kVector; ++i) vector.at[i] = numbers[g + i][j];
        at(mine.column(j), mine.row(g)) = vector;
      }
  }
};

// Some columns of the tile in a chunk of the dimensions, as they are in global memory.
template <typename C, int kSide>
struct GradientStage {
  static constexpr int kColumns = 16, kChunk = 2 * kTileRows<kSide>, kVector = kVectorOf<C>;
  static constexpr int kPerColumn = kChunk / kVector, kVectors = kColumns * kPerColumn / kTileThreads;
  C number[kColumns][kChunk];

  struct Carried {
    Vector<C> vector[kVectors];

    __device__ __forceinline__ void fetch(const C* desc, int first, int rows, int chunk0, int depth) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int at = threadIdx.x + i * kTileThreads, row = first + at / kPerColumn;
        const C* const from = row < rows ? desc + static_cast<int64_t>(row) * depth : nullptr;
        vector[i] = load_vector<true>(from, chunk0 + at % kPerColumn * kVector, depth);
      }
    }
    __device__ __forceinline__ void put(GradientStage& stage) const {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int at = threadIdx.x + i * kTileThreads;
        *reinterpret_cast<Vector<C>*>(&stage.number[at / kPerColumn][at % kPerColumn * kVector]) = vector[i];
      }
    }
  };
};

// A thread's part of the second product: its rows by two of its columns' worth of dimensions.
template <typename C, int kSide>
struct GradientSums {
  static constexpr int kVector = kVectorOf<C>, kRows = kTileRows<kSide>;
  C product[2][kSide][kSide] = {};
  C pulls[kSide] = {};

  __device__ __forceinline__ void add(SharedPulls<C, kRows>& tile, const GradientStage<C, kSide>& stage, int column0,
                                      const ThreadTile<C, kSide>& mine) {
#pragma unroll 2
    for (int k = 0; k < GradientStage<C, kSide>::kColumns; ++k) {
      Vector<C> a[kSide / kVector];
#pragma unroll
      for (int g = 0; g < kSide / kVector; ++g) a[g] = tile.at(column0 + k, mine.row(g * kVector));
#pragma unroll
      for (int i = 0; i < kSide; ++i) pulls[i] += a[i / kVector].at[i % kVector];
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int g = 0; g < kSide / kVector; ++g) {
          const auto b =
              *reinterpret_cast<const Vector<C>*>(&stage.number[k][half * kRows + mine.column(g * kVector)]);
#pragma unroll
          for (int i = 0; i < kSide; ++i)
#pragma unroll
            for (int j = 0; j < kVector; ++j)
              product[half][i][g * kVector + j] =
                  fma(a[i / kVector].at[i % kVector], b.at[j], product[half][i][g * kVector + j]);
        }
    }
  }
  // [rows, depth]
  __device__ __forceinline__ void write(const C* desc, int row0, int rows, int chunk0, int depth,
                                        const ThreadTile<C, kSide>& mine, C* out) const {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      const int row = row0 + mine.row(i);
      if (row >= rows) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int g = 0; g < kSide; g += kVector) {
          const int k = chunk0 + half * kRows + mine.column(g);
          if (k >= depth) continue;
          const int64_t at = static_cast<int64_t>(row) * depth + k;
          Vector<C> sum = load_vector<true>(desc + at, 0, kVector);
#pragma unroll
          for (int j = 0; j < kVector; ++j) sum.at[j] = fma(sum.at[j], pulls[i], -product[half][i][g + j]);
          *reinterpret_cast<Vector<C>*>(out + at) = sum;
        }
    }
  }
};

template <typename C>
__device__ __forceinline__ C sum_of_block(C value, C (&shared)[kTileThreads / 32]) {  // all threads; right in thread 0
  for (int bit = 16; bit != 0; bit /= 2) value += __shfl_xor_sync(~0u, value, bit);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  C sum = 0;
  if (threadIdx.x == 0)
    for (int i = 0; i < kTileThreads / 32; ++i) sum += shared[i];
  return sum;
}

// kSecond: rows are those of desc2, columns those of desc1. Only the first side makes the gradients of theta and reward.
template <typename C, bool kSecond>
__global__ void __launch_bounds__(kTileThreads, 2)
    gradient_kernel(PairSide<C> row_side, PairSide<C> column_side, MatchRule<C> rule,
                    const C* __restrict__ inverse_temperature, int64_t batch, int depth, TileRanges ranges,
                    int chunks, C* __restrict__ partials,       // [ranges.count, B, rows, depth]
                    C* __restrict__ theta_partials,             // [B, row tiles, ranges.count]
                    C* __restrict__ grad_reward) {              // [B, rows, columns], or null
  constexpr int kSide = kPairSide<C>, kRows = kTileRows<kSide>;
  using Stage = GradientStage<C, kSide>;
  union Shared {
    ProductTiles<C, kSide> tiles;
    Stage stages[2];
    C warp_sums[kTileThreads / 32];
  };
  alignas(16) __shared__ Shared shared;
  alignas(16) __shared__ SharedPulls<C, kRows> pulls;
  const ThreadTile<C, kSide> mine;
  const C theta = *inverse_temperature;
  const int rows = row_side.packed.rows, columns = column_side.packed.rows;
  const int chunk = blockIdx.x % chunks, block = blockIdx.x / chunks, range = block % ranges.count;
  const int row0 = block / ranges.count * kRows, first = range * ranges.tiles * kRows;
  const int last = first + ranges.tiles * kRows < columns ? first + ranges.tiles * kRows : columns;
  const bool is_first_chunk = !kSecond && chunk == 0;
  const int row_tiles = (rows + kRows - 1) / kRows;
  for (int64_t b = blockIdx.y; b < batch; b += gridDim.y) {
    const C* const from1 = row_side.packed.desc + b * rows * depth;
    const C* const from2 = column_side.packed.desc + b * columns * depth;
    GradientSums<C, kSide> sums;
    C grad_theta = 0;
    for (int column0 = first; column0 < last; column0 += kRows) {
      C t[kSide][kSide] = {};
      shared.tiles.template multiply<true>(from1, row0, rows, from2, column0, columns, depth, mine, t);
      typename Stage::Carried carried;
      carried.fetch(from2, column0, columns, chunk * Stage::kChunk, depth);
      carried.put(shared.stages[0]);
      pulls.store(t, mine);
#pragma unroll 1  // one pair at a time, from shared memory: the sums fill the registers
      for (int pair = 0; pair < kSide * kSide; ++pair) {
        const int i = mine.row(pair % kSide), j = mine.column(pair / kSide), row = row0 + i, column = column0 + j;
        C& pull = pulls.number[j][pulls.place(j, i)];
        const C distance = row < rows && column < columns
                               ? distance_of_rows(pull, row_side.packed, b * rows + row, column_side.packed,
                                                  b * columns + column, depth)
                               : kNoPair<C>;
        const C logit = logit_of_pair(distance, theta);
        PairGradient<C> gradient = {};
        if (logit != lowest_number<C>()) {
          const MatchPoint<C>& row_point = row_side.points[b * rows + row];
          const MatchPoint<C>& column_point = column_side.points[b * columns + column];
          gradient = kSecond ? gradient_of_pair(rule, logit, column_point, row_point, b, column, row)
                             : gradient_of_pair(rule, logit, row_point, column_point, b, row, column);
          grad_theta = fma(-gradient.logit, distance, grad_theta);
        }
        pull = distance > 0 ? -theta * gradient.logit / distance : C(0);
        if (is_first_chunk && grad_reward != nullptr && row < rows && column < columns)
          grad_reward[(b * rows + row) * columns + column] = gradient.reward;
      }
      __syncthreads();
      int buffer = 0;
      for (int k0 = 0; k0 < kRows; k0 += Stage::kColumns) {
        const bool more = k0 + Stage::kColumns < kRows;
        if (more) carried.fetch(from2, column0 + k0 + Stage::kColumns, columns, chunk * Stage::kChunk, depth);
        sums.add(pulls, shared.stages[buffer], k0, mine);
        buffer ^= 1;
        if (more) carried.put(shared.stages[buffer]);
        __syncthreads();
      }
    }
    sums.write(from1, row0, rows, chunk * Stage::kChunk, depth, mine,
               partials + (range * batch + b) * rows * depth);
    if (is_first_chunk) {
      const C sum = sum_of_block(grad_theta, shared.warp_sums);
      if (threadIdx.x == 0) theta_partials[b * row_tiles * ranges.count + block] = sum;
      __syncthreads();  // shared memory is used for the next image
    }
  }
}

// Adds up the ranges, in their order, and leaves out the padding.
template <typename C>
__global__ void __launch_bounds__(128)
    merge_gradient_kernel(const C* __restrict__ partials, int ranges, int64_t rows, int depth, int padded,
                          C* __restrict__ grad) {  // partials [ranges, rows, padded], grad [rows, depth]
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < rows * depth; at += step) {
    const int64_t from = at / depth * padded + at % depth;
    C sum = 0;
    for (int range = 0; range < ranges; ++range) sum += partials[range * rows * padded + from];
    grad[at] = sum;
  }
}

// One warp for each image.
template <typename C>
__global__ void __launch_bounds__(32)
    merge_theta_kernel(const C* __restrict__ partials, int64_t count, int64_t batch,
                       C* __restrict__ grad) {  // partials [B, count], grad [B]
  for (int64_t b = blockIdx.x; b < batch; b += gridDim.x) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += 32) sum += static_cast<double>(partials[b * count + i]);
    for (int bit = 16; bit != 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
    if (threadIdx.x == 0) grad[b] = static_cast<C>(sum);
  }
}

template <typename C, bool kSecond>
void gradient_to_side(const PairSide<C>& row_side, const PairSide<C>& column_side, const MatchRule<C>& rule,
                      const C* theta, int64_t batch, int depth, C* partials, C* theta_partials, C* grad,
                      C* grad_theta, C* grad_reward, cudaStream_t stream) {
  const int rows = row_side.packed.rows, row_tiles = tiles_of(rows, kPairTile<C>), padded = packed_depth(depth);
  const int chunks = gradient_chunks<C>(depth);
  const TileRanges ranges = ranges_of_gradient<C>(rows, column_side.packed.rows, batch, depth);
  const dim3 grid(static_cast<unsigned>(static_cast<int64_t>(row_tiles) * ranges.count * chunks),
                  static_cast<unsigned>(std::min<int64_t>(batch, 65535)));
  DISK_LAUNCH((gradient_kernel<C, kSecond>), grid, dim3(kTileThreads), 0, stream)
  (row_side, column_side, rule, theta, batch, padded, ranges, chunks, partials, theta_partials, grad_reward);
  const int64_t blocks = std::min<int64_t>((batch * rows * depth + 127) / 128, INT32_MAX);
  if (blocks != 0) {
    DISK_LAUNCH((merge_gradient_kernel<C>), dim3(static_cast<unsigned>(blocks)), dim3(128), 0, stream)
    (partials, ranges.count, batch * rows, depth, padded, grad);
  }
  if constexpr (!kSecond) {
    DISK_LAUNCH((merge_theta_kernel<C>), dim3(static_cast<unsigned>(std::min<int64_t>(batch, INT32_MAX))), dim3(32),
                0, stream)
    (theta_partials, static_cast<int64_t>(row_tiles) * ranges.count, batch, grad_theta);
  }
}

}  // namespace disk_ops
