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

// To the nearest element, ties to even.
template <typename T>
struct FromNumber {
  static DISK_HD T convert(T value) { return value; }
};
template <>
struct FromNumber<BFloat16> {
  static DISK_HD BFloat16 convert(float value) {
    const uint32_t bits = bits_of<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fc0};  // NaN
    return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
  }
};
template <>
struct FromNumber<Half> {
#if defined(__CUDACC__)
  static __device__ __forceinline__ Half convert(float value) { return {__half_as_ushort(__float2half_rn(value))}; }
#else
  static inline Half convert(float value) {
    const uint32_t bits = bits_of<uint32_t>(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};  // NaN
    if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65520 and more round to inf
    if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves multiples of 2^-24 in the lowest bits
      const float shifted = bits_of<float>(magnitude) + 0.5f;
      return {static_cast<uint16_t>(sign | (bits_of<uint32_t>(shifted) - 0x3f000000u))};
    }
    return {static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13))};
  }
#endif
};
template <typename T>
#if defined(__CUDACC__)
__device__ __forceinline__
#else
inline
#endif
    T from_number(computing<T> value) {
  return FromNumber<T>::convert(value);
}

template <typename T>
DISK_HD T lowest_number() {  // -inf
  return sizeof(T) == 4 ? static_cast<T>(bits_of<float>(0xff800000u))
                        : static_cast<T>(bits_of<double>(static_cast<uint64_t>(0xfff0000000000000ull)));
}
template <typename T>
DISK_HD T highest_number() {  // +inf
  return -lowest_number<T>();
}
template <typename T>
DISK_HD T largest_finite() {
  return sizeof(T) == 4 ? static_cast<T>(bits_of<float>(0x7f7fffffu))
                        : static_cast<T>(bits_of<double>(static_cast<uint64_t>(0x7fefffffffffffffull)));
}

}  // namespace disk_ops
