// Scalar rules shared by host and device code: orders that are exact in integers, and the two smallest of a set.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define DISK_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__)  // GCC inlines across instruction sets, as loops need to be vectorised, only what it must
#define DISK_HD inline __attribute__((always_inline))
#else
#define DISK_HD inline
#endif

namespace disk_ops {

template <typename To, typename From>
DISK_HD To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From), "a change of type, not of size");
  To bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// An unsigned integer that sorts as the number does: a < b exactly if ordered_bits(a) < ordered_bits(b), with
// -0 equal to +0. NaN has no place in this order; keep it out.
DISK_HD uint32_t ordered_bits(float value) {
  const uint32_t bits = bits_of<uint32_t>(value + 0.0f);  // -0 becomes +0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
DISK_HD uint64_t ordered_bits(double value) {
  const uint64_t bits = bits_of<uint64_t>(value + 0.0);
  return (bits >> 63) != 0 ? ~bits : bits | 0x8000000000000000ull;
}

template <typename Key>
DISK_HD Key smaller(Key a, Key b) {
  return b < a ? b : a;
}
template <typename Key>
DISK_HD Key larger(Key a, Key b) {
  return b < a ? a : b;
}

// The two smallest keys of a set. Keys of different elements differ (they carry the index), so neither the order of
// insertion nor that of merging matters.
template <typename Key>
struct TopTwo {
  Key best, second;

  DISK_HD void insert(Key key) {
    second = smaller(second, larger(best, key));
    best = smaller(best, key);
  }
  DISK_HD void merge(const TopTwo& other) {
    second = smaller(larger(best, other.best), smaller(second, other.second));
    best = smaller(best, other.best);
  }
};

}  // namespace disk_ops
