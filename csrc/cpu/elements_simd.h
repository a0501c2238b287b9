// Elements of tensors, float32 or of a half type, as vectors of float32. Included by instruction_sets.h once per
// instruction set, after vector_simd.h: hence no include guard.

struct Elements : Lanes<float> {
  typedef uint32_t Bits __attribute__((vector_size(DISK_VECTOR_BYTES)));
  typedef uint16_t Halves __attribute__((vector_size(DISK_VECTOR_BYTES / 2)));
  typedef uint16_t UnalignedHalves __attribute__((vector_size(DISK_VECTOR_BYTES / 2), aligned(2), may_alias));

  using Lanes<float>::load;
  using Lanes<float>::store;

  static inline Vector load(const c10::BFloat16* from) { return (Vector)(widened(from) << 16); }

  static inline Vector load(const c10::Half* from) {
#if DISK_VECTOR_BYTES == 64
    return (Vector)_mm512_maskz_cvtph_ps(0xffff, (__m256i)halves(from));  // with a mask as in vector_simd.h
#elif DISK_VECTOR_BYTES == 32
    return (Vector)_mm256_cvtph_ps((__m128i)halves(from));
#else
    const Bits bits = widened(from), magnitude = bits & 0x7fffu;
    // As floats these bits are 2^-112 too small: the exponents' biases differ. Right for subnormal numbers as well.
    const Bits scaled = (Bits)((Vector)(magnitude << 13) * 0x1p112f);
    const Bits finite = magnitude < 0x7c00u ? scaled : 0x7f800000u | magnitude << 13;
    return (Vector)((bits & 0x8000u) << 16 | finite);
#endif
  }

  // To the nearest element, ties to even.
  static inline void store(c10::BFloat16* to, Vector value) {
    const Bits bits = (Bits)value, magnitude = bits & 0x7fffffffu;
    const Bits rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    narrow(to, magnitude > 0x7f800000u ? Bits{} + 0x7fc0u : rounded);  // NaN would become infinite, or 0
  }

  static inline void store(c10::Half* to, Vector value) {
#if DISK_VECTOR_BYTES == 64
    halves(to) = (UnalignedHalves)_mm512_maskz_cvtps_ph(0xffff, (__m512)value, _MM_FROUND_TO_NEAREST_INT);
#elif DISK_VECTOR_BYTES == 32
    halves(to) = (UnalignedHalves)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT);
#else
    const Bits bits = (Bits)value, magnitude = bits & 0x7fffffffu;
    const Bits normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    // Adding 0.5 leaves multiples of 2^-24, the smallest number, in the lowest bits.
    const Bits subnormal = (Bits)((Vector)magnitude + 0.5f) - 0x3f000000u;
    Bits result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude < 0x477ff000u ? result : Bits{} + 0x7c00u;  // 65520 and more round to infinity
    result = magnitude > 0x7f800000u ? Bits{} + 0x7e00u : result;  // NaN
    narrow(to, (bits >> 16 & 0x8000u) | result);
#endif
  }

 private:
  template <typename T>
  static inline const UnalignedHalves& halves(const T* from) {
    return *reinterpret_cast<const UnalignedHalves*>(from);
  }
  template <typename T>
  static inline UnalignedHalves& halves(T* to) {
    return *reinterpret_cast<UnalignedHalves*>(to);
  }
  template <typename T>
  static inline Bits widened(const T* from) {
    return __builtin_convertvector((Halves)halves(from), Bits);
  }
  template <typename T>
  static inline void narrow(T* to, Bits bits) {
    halves(to) = (UnalignedHalves)__builtin_convertvector(bits, Halves);
  }
};
