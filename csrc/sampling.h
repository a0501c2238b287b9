// The rules of sample_grid, shared by CPU and CUDA: what decides is the same to the last bit on both.
//
// In a cell with the highest logit m, pixel q weighs e_q = exp(K_q - m). Weights are added in a fixed order: each row
// of the cell from left to right, then the rows from top to bottom. The proposal is the first pixel in raster order at
// which the sum passes a threshold that is uniform in [0, total).
#pragma once

#include <cmath>

#include "exact_math.h"
#include "philox.h"

namespace disk_ops {

constexpr int kMostCell = 64;

// What a logit counts as: NaN is never proposed, and +inf is a number with which differences are defined.
template <typename real>
DISK_HD real usable_logit(real logit) {
  constexpr real kMost = sizeof(real) == 4 ? real(0x1.fffffep127) : real(0x1.fffffffffffffp1023);
  return !(logit == logit) ? -real(INFINITY) : logit < kMost ? logit : kMost;
}

template <typename real>
struct Uniforms {
  real proposal, acceptance;  // in [0, 1)
};
template <typename real>
DISK_HD Uniforms<real> uniforms_of(uint64_t seed, uint32_t cell, uint32_t image) {
  const RandomBits bits = philox(seed, cell, image, 0, 0);
  Uniforms<real> uniforms;
  uniform_of(bits.word[0], bits.word[2], uniforms.proposal);
  uniform_of(bits.word[1], bits.word[3], uniforms.acceptance);
  return uniforms;
}

// The product may round to the total itself, which the sum would never pass: the number below it then.
DISK_HD float proposal_threshold(float uniform, float total) {
  const float threshold = uniform * total;
  return threshold < total ? threshold : bits_of<float>(bits_of<uint32_t>(total) - 1u);
}
DISK_HD double proposal_threshold(double uniform, double total) {
  const double threshold = uniform * total;
  return threshold < total ? threshold : bits_of<double>(bits_of<uint64_t>(total) - 1ull);
}

// Whether uniform < sigmoid(logit), without a division.
template <typename real>
DISK_HD bool is_accepted(real uniform, real logit) {
  const real small = exp_nonpositive(logit < 0 ? logit : -logit);
  return uniform * (real(1) + small) < (logit < 0 ? small : real(1));
}

// log softmax of the proposal + log sigmoid(+-logit) of what was decided.
template <typename real>
DISK_HD real log_probability(real logit, real highest, real total, bool accepted) {
  const real decided = accepted ? logit : -logit;
  const real magnitude = decided < 0 ? -decided : decided;
#if defined(__CUDACC__)
  const real log_sigmoid = (decided < 0 ? decided : real(0)) - ::log1p(::exp(-magnitude));
  return logit - highest - ::log(total) + log_sigmoid;
#else
  const real log_sigmoid = (decided < 0 ? decided : real(0)) - std::log1p(std::exp(-magnitude));
  return logit - highest - std::log(total) + log_sigmoid;
#endif
}

// The derivative of log_probability by the proposal's logit, but for the softmax: 1 + sigmoid(-K) or 1 - sigmoid(K).
template <typename real>
DISK_HD real own_slope(real logit, bool accepted) {
  const real small = exp_nonpositive(logit < 0 ? logit : -logit);
  const real sigmoid_minus = (logit < 0 ? real(1) : small) / (real(1) + small);  // sigmoid(-K) = 1 - sigmoid(K)
  return accepted ? real(1) + sigmoid_minus : sigmoid_minus;
}

}  // namespace disk_ops
