// Launchers of match_statistics, _match_sums and _match_backward: raw pointers and sizes, no torch. match_launch.h
// allocates and calls them. N, M and B are not 0.
#pragma once

#include <algorithm>

#include "packed_descriptors.h"

namespace disk_ops {

// What a kernel needs to know of a descriptor besides its numbers, side by side.
template <typename C>
struct alignas(16) MatchPoint {
  C logsumexp, sum, weight, weight0;
  C x, y, warped_x, warped_y;  // keypoint, and where the other image shows it (NaN: unknown)
  C line[3], limit;            // epipolar line in the other image, squared distance limit times squared slope
};

// One side of the matches. Numbers are null where they are not given or not needed.
template <typename T>
struct MatchSide {
  using C = computing<T>;
  const T* desc;       // [B, rows, D], contiguous
  const bool* valid;   // [B, rows], or null: all true
  const C* logsumexp;  // [B, rows]
  const C* sum;        // [B, rows]
  const C* weight;     // [B, rows]
  const C* weight0;    // [B, rows], of the first side
  const C* keypoints;  // [B, rows, 2]
  const C* warped;     // [B, rows, 2]
  PackedDescriptors<C> packed;  // scratch
  MatchPoint<C>* points;        // [B, rows], scratch
};

// The reward r_ij: as given, or by geometry. w_ij = (weight1_i + weight2_j) r_ij + weight0_i.
template <typename C>
struct MatchRule {
  const C* reward;       // [B, N, M] with strides, or null
  int64_t strides[3];
  const C* fundamental;  // [B, 3, 3], or null
  bool has_keypoints, has_warped, official;
  bool weighted;         // whether there are weights; if not, w = r in sums and w = 0 in gradients
  C squared_epsilon, lambda_tp, lambda_fp;
};

// Consecutive tiles that one block goes through, and how many such ranges there are.
struct TileRanges {
  int tiles, count;
};
inline TileRanges tile_ranges(int rows, int tile, int most) {
  const int all = tiles_of(rows, tile), each = tiles_of(all, most);
  return {each, tiles_of(all, each)};
}

// Sums: a block has a range of row tiles and a range of column tiles and keeps sums of its own for them.
constexpr int kMostRanges = 32;
template <typename C>
TileRanges ranges_of_sums(int rows) {
  return tile_ranges(rows, kPairTile<C>, kMostRanges);
}
template <typename C>
struct SumScratch {
  C* rows;     // [ranges of columns, B, N, 2]
  C* columns;  // [ranges of rows, B, M, 2]
};

// Gradients: a block has one row tile, a range of column tiles and a chunk of the dimensions.
template <typename C>
constexpr int kGradientChunk = 2 * kPairTile<C>;
template <typename C>
int gradient_chunks(int depth) {  // at least one, which makes the gradient to theta
  return std::max(1, tiles_of(packed_depth(depth), kGradientChunk<C>));
}
template <typename C>
TileRanges ranges_of_gradient(int rows, int columns, int64_t batch, int depth) {
  constexpr int kMost = 8, kEnoughBlocks = 512;
  const int64_t blocks = batch * tiles_of(rows, kPairTile<C>) * gradient_chunks<C>(depth);
  const int64_t wanted = (kEnoughBlocks + blocks - 1) / blocks;
  return tile_ranges(columns, kPairTile<C>, static_cast<int>(std::min<int64_t>(kMost, wanted)));
}
template <typename C>
struct GradientScratch {
  C* partials1;  // [ranges of columns, B, N, packed_depth(D)]
  C* partials2;  // [ranges of rows, B, M, packed_depth(D)]
  C* theta;      // [B, row tiles, ranges of columns]
};
template <typename C>
struct MatchGradients {
  C* desc1;   // [B, N, D]
  C* desc2;   // [B, M, D]
  C* theta;   // [B]
  C* reward;  // [B, N, M], or null: not wanted
};

template <typename T>
cudaError_t launch_match_statistics(const MatchSide<T>& side1, const MatchSide<T>& side2, int64_t batch, int depth,
                                    const computing<T>* theta,  // []
                                    const SumScratch<computing<T>>& scratch,
                                    computing<T>* logsumexp1,  // [B, N]
                                    computing<T>* logsumexp2,  // [B, M]
                                    cudaStream_t stream);

template <typename T>
cudaError_t launch_match_sums(const MatchSide<T>& side1, const MatchSide<T>& side2,
                              const MatchRule<computing<T>>& rule, int64_t batch, int depth,
                              const computing<T>* theta,  // []
                              const SumScratch<computing<T>>& scratch,
                              computing<T>* sum1,          // [B, N]
                              computing<T>* sum2,          // [B, M]
                              computing<T>* probability1,  // [B, N]
                              cudaStream_t stream);

template <typename T>
cudaError_t launch_match_backward(const MatchSide<T>& side1, const MatchSide<T>& side2,
                                  const MatchRule<computing<T>>& rule, int64_t batch, int depth,
                                  const computing<T>* theta,  // []
                                  const GradientScratch<computing<T>>& scratch,
                                  const MatchGradients<computing<T>>& gradients, cudaStream_t stream);

}  // namespace disk_ops
