// Element types of tensors as kernels see them. Half and BFloat16 are bare bits, so that launchers need neither
// torch's nor CUDA's half types and the emulator reads them too.
#pragma once

#include <cstdint>

#include "../scalar.h"
#include "number.h"
#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

namespace disk_ops {

// What a kernel computes in: float, or double for double.
template <typename T>
struct Computing {
  using type = float;
};
template <>
struct Computing<double> {
  using type = double;
};
template <typename T>
using computing = typename Computing<T>::type;

DISK_HD float to_number(float value) { return value; }
DISK_HD double to_number(double value) { return value; }
DISK_HD float to_number(BFloat16 value) { return bits_of<float>(static_cast<uint32_t>(value.bits) << 16); }

#if defined(__CUDACC__)
__device__ __forceinline__ float to_number(Half value) { return __half2float(__ushort_as_half(value.bits)); }
#else
inline float to_number(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16, magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_of<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);  // inf, NaN
  // As a float these bits are 2^-112 too small: the exponents' biases differ. Right for subnormal numbers as well.
  const float scaled = bits_of<float>(magnitude << 13) * 0x1p112f;
  return bits_of<float>(sign | bits_of<uint32_t>(scaled));
}
#endif

template <typename T>
DISK_HD T lowest_number() {  // -inf
  return sizeof(T) == 4 ? static_cast<T>(bits_of<float>(0xff800000u))
                        : static_cast<T>(bits_of<double>(static_cast<uint64_t>(0xfff0000000000000ull)));
}
template <typename T>
DISK_HD T highest_number() {  // +inf
  return -lowest_number<T>();
}

}  // namespace disk_ops
