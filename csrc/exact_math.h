// An exponential with the same bits on every processor, for decisions that must not differ between devices.
//
// Library functions differ in their last bits. This one is written in operations that IEEE 754 defines exactly, and
// multiplications that feed an addition are fused explicitly, so that no compiler has a choice. (The product by a
// power of two at the end is exact, fused or not.)
#pragma once

#include <cmath>

#include "scalar.h"

namespace disk_ops {

#if defined(__CUDACC__)
DISK_HD float fused(float a, float b, float c) { return ::fmaf(a, b, c); }
DISK_HD double fused(double a, double b, double c) { return ::fma(a, b, c); }
#else
DISK_HD float fused(float a, float b, float c) { return std::fma(a, b, c); }
DISK_HD double fused(double a, double b, double c) { return std::fma(a, b, c); }
#endif

// e^x for x <= 0 within 2 units in the last place; exactly 1 at 0; 0 where e^x would be near the subnormal numbers.
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its power series. Adding 1.5 * 2^(mantissa) rounds to an integer and
// leaves it in the lowest bits. The choice at the end is made of bits, because compilers turn a choice of products into
// branches.
DISK_HD float exp_nonpositive(float x) {
  constexpr float kLowest = -87.0f;
  const float bounded = x < kLowest ? kLowest : x;
  const float shifted = fused(bounded, 0x1.715476p+0f, 0x1.8p23f);  // x / ln 2
  const float n = shifted - 0x1.8p23f;
  const float r = fused(n, 0x1.05c610p-29f, fused(n, -0x1.62e430p-1f, bounded));
  float p = fused(r, 1.0f / 5040, 1.0f / 720);
  p = fused(p, r, 1.0f / 120);
  p = fused(p, r, 1.0f / 24);
  p = fused(p, r, 1.0f / 6);
  p = fused(p, r, 0.5f);
  p = fused(p, r, 1.0f);
  p = fused(p, r, 1.0f);
  const float power = bits_of<float>((bits_of<uint32_t>(shifted) << 23) + 0x3f800000u);
  return bits_of<float>(bits_of<uint32_t>(p * power) & (0u - static_cast<uint32_t>(x >= kLowest)));
}

DISK_HD double exp_nonpositive(double x) {
  constexpr double kLowest = -708.0;
  const double bounded = x < kLowest ? kLowest : x;
  const double shifted = fused(bounded, 0x1.71547652b82fep+0, 0x1.8p52);
  const double n = shifted - 0x1.8p52;
  const double r = fused(n, -0x1.abc9e3b39803fp-56, fused(n, -0x1.62e42fefa39efp-1, bounded));
  double p = fused(r, 1.0 / 6227020800, 1.0 / 479001600);
  p = fused(p, r, 1.0 / 39916800);
  p = fused(p, r, 1.0 / 3628800);
  p = fused(p, r, 1.0 / 362880);
  p = fused(p, r, 1.0 / 40320);
  p = fused(p, r, 1.0 / 5040);
  p = fused(p, r, 1.0 / 720);
  p = fused(p, r, 1.0 / 120);
  p = fused(p, r, 1.0 / 24);
  p = fused(p, r, 1.0 / 6);
  p = fused(p, r, 0.5);
  p = fused(p, r, 1.0);
  p = fused(p, r, 1.0);
  const double power = bits_of<double>((bits_of<uint64_t>(shifted) << 52) + 0x3ff0000000000000ull);
  return bits_of<double>(bits_of<uint64_t>(p * power) & (0ull - static_cast<uint64_t>(x >= kLowest)));
}

}  // namespace disk_ops
