// match_statistics and _match_sums: what all pairs of a row, and all pairs of a column, add up to, from one product.
//
// A block goes through the tiles of a range of rows and a range of columns, and adds each tile to sums of its own in
// global memory: [ranges of columns, B, N] and [ranges of rows, B, M]. A second kernel merges these in the order of the
// ranges. So the order of every addition depends on sizes alone.
#pragma once

#include "match_pairs.cuh"

namespace disk_ops {

template <typename C>
struct LogSum {  // log of a sum of exponentials: max + log(sum)
  C max, sum;

  __device__ __forceinline__ void merge(const LogSum& other) {
    const C top = other.max > max ? other.max : max;
    sum = scaled(top) + other.scaled(top), max = top;
  }
  __device__ __forceinline__ C scaled(C top) const { return max == top ? sum : sum * exp(max - top); }
  __device__ __forceinline__ void store(C* logsumexp, C*, int64_t row) const { logsumexp[row] = max + log(sum); }
};

template <typename C>
struct PairSums {
  C weighted, probability;

  __device__ __forceinline__ void merge(const PairSums& other) {
    weighted += other.weighted, probability += other.probability;
  }
  __device__ __forceinline__ void store(C* sums, C* probabilities, int64_t row) const {
    sums[row] = weighted;
    if (probabilities != nullptr) probabilities[row] = probability;
  }
};

template <typename C>
__device__ __forceinline__ LogSum<C> from_lane(const LogSum<C>& value, int bit) {
  return {__shfl_xor_sync(~0u, value.max, bit), __shfl_xor_sync(~0u, value.sum, bit)};
}
template <typename C>
__device__ __forceinline__ PairSums<C> from_lane(const PairSums<C>& value, int bit) {
  return {__shfl_xor_sync(~0u, value.weighted, bit), __shfl_xor_sync(~0u, value.probability, bit)};
}

template <int kCount, typename C, typename LogitAt>
__device__ __forceinline__ LogSum<C> log_sum(C lowest, LogitAt logit_at) {
  LogSum<C> value = {lowest, 0};
#pragma unroll
  for (int i = 0; i < kCount; ++i) value.max = logit_at(i) > value.max ? logit_at(i) : value.max;
#pragma unroll
  for (int i = 0; i < kCount; ++i) value.sum += logit_at(i) == lowest ? C(0) : exp(logit_at(i) - value.max);
  return value;
}

template <typename C>
struct Statistics {
  using Value = LogSum<C>;
  static constexpr int kSide = kPairSide<C>;

  // Values of a thread's rows and columns from its distances.
  __device__ __forceinline__ void sum(C (&t)[kSide][kSide], C theta, const ThreadTile<C, kSide>&, const PairSide<C>&,
                                      int, const PairSide<C>&, int, int64_t, Value (&rows)[kSide],
                                      Value (&columns)[kSide]) const {
#pragma unroll
    for (int i = 0; i < kSide; ++i)
#pragma unroll
      for (int j = 0; j < kSide; ++j) t[i][j] = logit_of_pair(t[i][j], theta);
#pragma unroll
    for (int i = 0; i < kSide; ++i)
      rows[i] = log_sum<kSide>(lowest_number<C>(), [&](int j) { return t[i][j]; });
#pragma unroll
    for (int j = 0; j < kSide; ++j)
      columns[j] = log_sum<kSide>(lowest_number<C>(), [&](int i) { return t[i][j]; });
  }
};

template <typename C>
struct WeightedSums {
  using Value = PairSums<C>;
  static constexpr int kSide = kPairSide<C>;
  MatchRule<C> rule;

  __device__ __forceinline__ void sum(C (&t)[kSide][kSide], C theta, const ThreadTile<C, kSide>& mine,
                                      const PairSide<C>& side1, int row0, const PairSide<C>& side2, int column0,
                                      int64_t b, Value (&rows)[kSide], Value (&columns)[kSide]) const {
#pragma unroll
    for (int i = 0; i < kSide; ++i) rows[i] = columns[i] = {0, 0};
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      const int column = column0 + mine.column(j);
      if (column >= side2.packed.rows) continue;
      const MatchPoint<C> point2 = side2.points[b * side2.packed.rows + column];
#pragma unroll
      for (int i = 0; i < kSide; ++i) {
        const C logit = logit_of_pair(t[i][j], theta);
        if (logit == lowest_number<C>()) continue;
        const int row = row0 + mine.row(i);
        const MatchPoint<C> point1 = side1.points[b * side1.packed.rows + row];
        const C probability = probability_of((logit - point1.logsumexp) + (logit - point2.logsumexp));
        const C reward = reward_of_pair(rule, point1, point2, b, row, column);
        const C weight = fma(point1.weight + point2.weight, reward, point1.weight0);
        const Value value = {probability * weight, probability};
        rows[i].merge(value), columns[j].merge(value);
      }
    }
  }
};

// Adds the value of a tile to that of the tiles before it.
template <typename Value>
__device__ __forceinline__ void keep(Value value, Value* kept, bool first) {
  if (!first) {
    Value before = *kept;
    before.merge(value);
    value = before;
  }
  *kept = value;
}

template <typename C, typename Sums>
__global__ void __launch_bounds__(kTileThreads, 2)
    sum_pairs_kernel(PairSide<C> side1, PairSide<C> side2, Sums sums, const C* __restrict__ inverse_temperature,
                     int64_t batch, int depth, TileRanges ranges1, TileRanges ranges2,
                     typename Sums::Value* row_sums,       // [ranges2.count, B, N]
                     typename Sums::Value* column_sums) {  // [ranges1.count, B, M]
  using Value = typename Sums::Value;
  constexpr int kSide = kPairSide<C>, kRows = kTileRows<kSide>;
  union Shared {
    ProductTiles<C, kSide> tiles;
    SharedReduction<Value, kRows> values;
  };
  alignas(16) __shared__ Shared shared;
  const ThreadTile<C, kSide> mine;
  const C theta = *inverse_temperature;
  const int rows = side1.packed.rows, columns = side2.packed.rows, at = static_cast<int>(threadIdx.x) % kRows;
  const int range1 = static_cast<int>(blockIdx.x) / ranges2.count, range2 = blockIdx.x % ranges2.count;
  const int first1 = range1 * ranges1.tiles * kRows, first2 = range2 * ranges2.tiles * kRows;
  for (int64_t b = blockIdx.y; b < batch; b += gridDim.y) {
    Value* const my_rows = row_sums + (range2 * batch + b) * rows;
    Value* const my_columns = column_sums + (range1 * batch + b) * columns;
    for (int row0 = first1, tile1 = 0; tile1 < ranges1.tiles && row0 < rows; ++tile1, row0 += kRows) {
      for (int column0 = first2, tile2 = 0; tile2 < ranges2.tiles && column0 < columns; ++tile2, column0 += kRows) {
        C t[kSide][kSide] = {};
        shared.tiles.template multiply<true>(side1.packed.desc + b * rows * depth, row0, rows,
                                             side2.packed.desc + b * columns * depth, column0, columns, depth, mine,
                                             t);
        distances_of_tile(t, mine, side1.packed, row0, side2.packed, column0, b, depth);
        Value of_rows[kSide], of_columns[kSide];
        sums.sum(t, theta, mine, side1, row0, side2, column0, b, of_rows, of_columns);
        shared.values.put_rows(of_rows, mine);
        shared.values.put_columns(of_columns, mine);
        __syncthreads();
        if (threadIdx.x < kRows && row0 + at < rows) {
          keep(shared.values.row(at), my_rows + row0 + at, tile2 == 0);
        } else if (threadIdx.x >= kRows && threadIdx.x < 2 * kRows && column0 + at < columns) {
          keep(shared.values.column(at), my_columns + column0 + at, tile1 == 0);
        }
        __syncthreads();  // shared memory is used for the next tile
      }
    }
  }
}

// Merges the sums of all ranges, in their order.
template <typename C, typename Value>
__global__ void __launch_bounds__(128)
    merge_sums_kernel(const Value* __restrict__ sums, int ranges, int64_t rows, C* first, C* second) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; row < rows; row += step) {
    Value value = sums[row];
    for (int range = 1; range < ranges; ++range) value.merge(sums[range * rows + row]);
    value.store(first, second, row);
  }
}

template <typename Value, typename C>
void merge_sums(const C* sums, int ranges, int64_t rows, C* first, C* second, cudaStream_t stream) {
  const int64_t blocks = std::min<int64_t>((rows + 127) / 128, INT32_MAX);
  DISK_LAUNCH((merge_sums_kernel<C, Value>), dim3(static_cast<unsigned>(blocks)), dim3(128), 0, stream)
  (reinterpret_cast<const Value*>(sums), ranges, rows, first, second);
}

template <typename C, typename Sums>
void sum_pairs(const PairSide<C>& side1, const PairSide<C>& side2, const Sums& sums, const C* theta, int64_t batch,
               int depth, const SumScratch<C>& scratch, C* result1, C* result2, C* probability1,
               cudaStream_t stream) {
  using Value = typename Sums::Value;
  static_assert(sizeof(Value) == 2 * sizeof(C), "as SumScratch has it");
  const int rows = side1.packed.rows, columns = side2.packed.rows;
  const TileRanges ranges1 = ranges_of_sums<C>(rows), ranges2 = ranges_of_sums<C>(columns);
  const dim3 grid(static_cast<unsigned>(ranges1.count * ranges2.count),
                  static_cast<unsigned>(std::min<int64_t>(batch, 65535)));
  DISK_LAUNCH((sum_pairs_kernel<C, Sums>), grid, dim3(kTileThreads), 0, stream)
  (side1, side2, sums, theta, batch, packed_depth(depth), ranges1, ranges2, reinterpret_cast<Value*>(scratch.rows),
   reinterpret_cast<Value*>(scratch.columns));
  merge_sums<Value, C>(scratch.rows, ranges2.count, batch * rows, result1, probability1, stream);
  merge_sums<Value, C>(scratch.columns, ranges1.count, batch * columns, result2, nullptr, stream);
}

}  // namespace disk_ops
