// The sum over a warp, in an order that doesn't change.
#pragma once

#include "launch.cuh"

namespace disk_ops {

template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int bit = 16; bit != 0; bit /= 2) value += __shfl_xor_sync(~0u, value, bit);
  return value;
}

}  // namespace disk_ops
