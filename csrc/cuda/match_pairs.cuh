// What the kernels of matches share: the points of both sides, their reward, and the logit of a pair.
#pragma once

#include "match_kernel.h"
#include "packed_descriptors.cuh"

namespace disk_ops {

template <typename C>
struct PairSide {  // as kernels read it
  PackedDescriptors<C> packed;
  const MatchPoint<C>* points;  // [B, rows]; null in match_statistics
};

// Gathers what is given of each descriptor of one side. kSecond: of the second side, whose lines come from F^T.
template <typename T, bool kSecond>
__global__ void __launch_bounds__(128)
    prepare_points_kernel(MatchSide<T> side, MatchRule<computing<T>> rule, int64_t batch,
                          computing<T> missing_weight) {
  using C = computing<T>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; row < batch * side.packed.rows;
       row += step) {
    const auto given = [row](const C* numbers) { return numbers == nullptr ? C(0) : numbers[row]; };
    MatchPoint<C> point = {};
    point.logsumexp = given(side.logsumexp), point.sum = given(side.sum);
    point.weight = side.weight == nullptr ? missing_weight : side.weight[row];
    point.weight0 = given(side.weight0);
    if (side.keypoints != nullptr) point.x = side.keypoints[2 * row], point.y = side.keypoints[2 * row + 1];
    if (side.warped != nullptr) {
      point.warped_x = side.warped[2 * row], point.warped_y = side.warped[2 * row + 1];
      if (point.warped_y != point.warped_y) point.warped_x = point.warped_y;  // NaN in x alone says: unknown
    }
    if (rule.fundamental != nullptr) {
      const C* const matrix = rule.fundamental + row / side.packed.rows * 9;
      constexpr int kAcross = kSecond ? 3 : 1, kDown = kSecond ? 1 : 3;
      for (int i = 0; i < 3; ++i) {
        const C* const entries = matrix + i * kDown;
        point.line[i] = fma(entries[0], point.x, fma(entries[kAcross], point.y, entries[2 * kAcross]));
      }
      point.limit = rule.squared_epsilon * (point.line[0] * point.line[0] + point.line[1] * point.line[1]);
    }
    side.points[row] = point;
  }
}

template <typename C>
__device__ __forceinline__ bool is_near_line(const MatchPoint<C>& from, const MatchPoint<C>& point) {
  const C offset = fma(from.line[0], point.x, fma(from.line[1], point.y, from.line[2]));
  return offset * offset < from.limit;  // never for NaN
}

template <typename C>
__device__ __forceinline__ bool is_near_warped(const MatchPoint<C>& from, const MatchPoint<C>& point,
                                               C squared_epsilon) {
  const C x = from.warped_x - point.x, y = from.warped_y - point.y;
  return fma(x, x, y * y) < squared_epsilon;  // never for NaN
}

// r_ij of point i of the first side and point j of the second.
template <typename C>
__device__ __forceinline__ C reward_of_pair(const MatchRule<C>& rule, const MatchPoint<C>& point1,
                                            const MatchPoint<C>& point2, int64_t b, int i, int j) {
  if (rule.reward != nullptr) return rule.reward[b * rule.strides[0] + i * rule.strides[1] + j * rule.strides[2]];
  if (!rule.has_keypoints) return 0;
  bool correct = false, harmless = false;
  if (rule.fundamental != nullptr) correct = is_near_line(point1, point2) && is_near_line(point2, point1);
  if (rule.has_warped) {
    const bool unknown = point1.warped_x != point1.warped_x || point2.warped_x != point2.warped_x;
    harmless = correct && (rule.official || unknown);
    correct = is_near_warped(point1, point2, rule.squared_epsilon) &&
              is_near_warped(point2, point1, rule.squared_epsilon);
  }
  return correct ? rule.lambda_tp : harmless ? C(0) : rule.lambda_fp;
}

template <typename C>
__device__ __forceinline__ C logit_of_pair(C distance, C theta) {
  return distance == kNoPair<C> ? lowest_number<C>() : -theta * distance;
}

// A probability from its logarithm, which as the difference of large numbers may round to any number above 0.
template <typename C>
__device__ __forceinline__ C probability_of(C log) {
  return exp(log > 0 ? C(0) : log);
}

template <typename T>
void pack_side(const MatchSide<T>& side, int64_t batch, int depth, cudaStream_t stream) {
  pack_descriptors(side.desc, side.valid, side.packed, batch, depth, stream);
}

template <typename T>
void prepare_points(const MatchSide<T>& side1, const MatchSide<T>& side2, const MatchRule<computing<T>>& rule,
                    int64_t batch, computing<T> missing_weight1, cudaStream_t stream) {
  using C = computing<T>;
  const auto grid = [batch](int rows) {
    return dim3(static_cast<unsigned>(std::min<int64_t>((batch * rows + 127) / 128, INT32_MAX)));
  };
  DISK_LAUNCH((prepare_points_kernel<T, false>), grid(side1.packed.rows), dim3(128), 0, stream)
  (side1, rule, batch, missing_weight1);
  DISK_LAUNCH((prepare_points_kernel<T, true>), grid(side2.packed.rows), dim3(128), 0, stream)
  (side2, rule, batch, C(0));
}

}  // namespace disk_ops
