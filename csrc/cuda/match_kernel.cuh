// The launchers of match_kernel.h. Kernels see packed descriptors only: float, or double for double.
#pragma once

#include "match_backward.cuh"
#include "match_sums.cuh"

namespace disk_ops {

template <typename T>
cudaError_t launch_match_statistics(const MatchSide<T>& side1, const MatchSide<T>& side2, int64_t batch, int depth,
                                    const computing<T>* theta, const SumScratch<computing<T>>& scratch,
                                    computing<T>* logsumexp1, computing<T>* logsumexp2, cudaStream_t stream) {
  using C = computing<T>;
  pack_side(side1, batch, depth, stream);
  pack_side(side2, batch, depth, stream);
  sum_pairs<C>(PairSide<C>{side1.packed, nullptr}, PairSide<C>{side2.packed, nullptr}, Statistics<C>{}, theta, batch,
               depth, scratch, logsumexp1, logsumexp2, nullptr, stream);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_match_sums(const MatchSide<T>& side1, const MatchSide<T>& side2,
                              const MatchRule<computing<T>>& rule, int64_t batch, int depth,
                              const computing<T>* theta, const SumScratch<computing<T>>& scratch, computing<T>* sum1,
                              computing<T>* sum2, computing<T>* probability1, cudaStream_t stream) {
  using C = computing<T>;
  pack_side(side1, batch, depth, stream);
  pack_side(side2, batch, depth, stream);
  prepare_points(side1, side2, rule, batch, rule.weighted ? C(0) : C(1), stream);
  sum_pairs<C>(PairSide<C>{side1.packed, side1.points}, PairSide<C>{side2.packed, side2.points},
               WeightedSums<C>{rule}, theta, batch, depth, scratch, sum1, sum2, probability1, stream);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_match_backward(const MatchSide<T>& side1, const MatchSide<T>& side2,
                                  const MatchRule<computing<T>>& rule, int64_t batch, int depth,
                                  const computing<T>* theta, const GradientScratch<computing<T>>& scratch,
                                  const MatchGradients<computing<T>>& gradients, cudaStream_t stream) {
  using C = computing<T>;
  pack_side(side1, batch, depth, stream);
  pack_side(side2, batch, depth, stream);
  prepare_points(side1, side2, rule, batch, C(0), stream);
  const PairSide<C> pairs1{side1.packed, side1.points}, pairs2{side2.packed, side2.points};
  gradient_to_side<C, false>(pairs1, pairs2, rule, theta, batch, depth, scratch.partials1, scratch.theta,
                             gradients.desc1, gradients.theta, gradients.reward, stream);
  gradient_to_side<C, true>(pairs2, pairs1, rule, theta, batch, depth, scratch.partials2, nullptr, gradients.desc2,
                            nullptr, nullptr, stream);
  return cudaGetLastError();
}

// One translation unit instantiates these for every element type.
#define DISK_INSTANTIATE_MATCH(T)                                                                                  \
  template cudaError_t launch_match_statistics<T>(const MatchSide<T>&, const MatchSide<T>&, int64_t, int,          \
                                                  const computing<T>*, const SumScratch<computing<T>>&,            \
                                                  computing<T>*, computing<T>*, cudaStream_t);                     \
  template cudaError_t launch_match_sums<T>(const MatchSide<T>&, const MatchSide<T>&,                              \
                                            const MatchRule<computing<T>>&, int64_t, int, const computing<T>*,     \
                                            const SumScratch<computing<T>>&, computing<T>*, computing<T>*,         \
                                            computing<T>*, cudaStream_t);                                          \
  template cudaError_t launch_match_backward<T>(const MatchSide<T>&, const MatchSide<T>&,                          \
                                                const MatchRule<computing<T>>&, int64_t, int, const computing<T>*, \
                                                const GradientScratch<computing<T>>&,                              \
                                                const MatchGradients<computing<T>>&, cudaStream_t);

}  // namespace disk_ops
