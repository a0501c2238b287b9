// Vectors of DISK_VECTOR_BYTES bytes and the arithmetic on them. Included by instruction_sets.h once per instruction
// set: hence no include guard.

template <typename real>
struct Lanes {
  static constexpr int kLanes = DISK_VECTOR_BYTES / sizeof(real);

  typedef real Vector __attribute__((vector_size(DISK_VECTOR_BYTES)));
  typedef real Unaligned __attribute__((vector_size(DISK_VECTOR_BYTES), aligned(sizeof(real)), may_alias));
  typedef decltype(Vector{} < Vector{}) Mask;
  typedef int32_t Integers __attribute__((vector_size(DISK_VECTOR_BYTES)));

  static inline Vector load(const real* from) { return *reinterpret_cast<const Unaligned*>(from); }
  static inline void store(real* to, Vector value) { *reinterpret_cast<Unaligned*>(to) = value; }
  static inline Vector fill(real value) { return Vector{} + value; }
  static inline Vector larger(Vector a, Vector b) { return a < b ? b : a; }  // a where b is NaN

  static inline bool any(Mask mask) {
#if DISK_VECTOR_BYTES == 64
    return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#elif DISK_VECTOR_BYTES == 32
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
    uint64_t half[2];
    std::memcpy(half, &mask, sizeof(half));
    return (half[0] | half[1]) != 0;
#endif
  }

  static inline Vector square_root(Vector value) {
#if DISK_VECTOR_BYTES == 64
    // With a mask, because GCC 12 warns of its own header's undefined register otherwise; the code is the same.
    if constexpr (sizeof(real) == 4) return (Vector)_mm512_maskz_sqrt_ps(0xffff, (__m512)value);
    if constexpr (sizeof(real) == 8) return (Vector)_mm512_maskz_sqrt_pd(0xff, (__m512d)value);
#elif DISK_VECTOR_BYTES == 32
    if constexpr (sizeof(real) == 4) return (Vector)_mm256_sqrt_ps((__m256)value);
    if constexpr (sizeof(real) == 8) return (Vector)_mm256_sqrt_pd((__m256d)value);
#else
    for (int lane = 0; lane < kLanes; ++lane) value[lane] = std::sqrt(value[lane]);
    return value;
#endif
  }

  // e^x: within 2 units in the last place where the result is a normal number, 0 below, inf above, NaN of NaN.
  static inline Vector exp(Vector x) { return exp(x, -87.3365f); }

  // A probability e^x, 0 below 1e-19: which is nothing beside the others, whose sum is 1, while the product of two
  // such probabilities would be a subnormal number, and those are slow.
  static inline Vector probability(Vector x) { return exp(at_most_0(x), -43.6f); }

  // The logarithm of a probability that is the difference of large numbers may round to any number above 0.
  static inline Vector at_most_0(Vector x) { return x > Vector{} ? Vector{} : x; }  // NaN stays

  static inline Vector exp(Vector x, [[maybe_unused]] float lowest) {  // 0 below e^lowest, for float
    if constexpr (sizeof(real) == 8) {
      for (int lane = 0; lane < kLanes; ++lane) x[lane] = std::exp(x[lane]);
      return x;
    } else {
      const Vector low = fill(lowest), high = fill(89.0f);
      const Vector bounded = x < low ? low : x > high ? high : x;
      // x = n ln 2 + r, |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer, which is left in the lowest bits.
      const Vector shifted = bounded * 1.44269504f + 12582912.0f;
      const Vector n = shifted - 12582912.0f;
      const Vector r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
      // (e^r - 1 - r) / r^2, interpolated at Chebyshev's points; relative error of e^r 1.1e-8 before rounding
      Vector p = r * 0.00139262135f + 0.00836320297f;
      p = p * r + 0.0416665544f;
      p = p * r + 0.166665768f;
      p = p * r + 0.5f;
      p = p * (r * r) + r + 1.0f;
      const Vector scale = (Vector)(((Integers)shifted << 23) + 0x3f800000);  // 2^n; inf for n = 128
      return x < low ? Vector{} : p * scale;
    }
  }

  // The sums over the lanes of eight vectors.
  static inline void sums(const Vector (&values)[8], real* to) {
#if DISK_VECTOR_BYTES >= 32
    if constexpr (sizeof(real) == 4) {
      const auto half = [&](int i) {
#if DISK_VECTOR_BYTES == 64
        const __m512 value = (__m512)values[i];
        return _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, value, 0), _mm512_maskz_extractf32x8_ps(0xff, value, 1));
#else
        return (__m256)values[i];
#endif
      };
      __m256 four[2];
      for (int i = 0; i < 2; ++i)
        four[i] = _mm256_hadd_ps(_mm256_hadd_ps(half(4 * i), half(4 * i + 1)),
                                 _mm256_hadd_ps(half(4 * i + 2), half(4 * i + 3)));
      const __m256 low = _mm256_permute2f128_ps(four[0], four[1], 0x20);
      _mm256_storeu_ps(to, _mm256_add_ps(low, _mm256_permute2f128_ps(four[0], four[1], 0x31)));
      return;
    }
#endif
    for (int i = 0; i < 8; ++i) to[i] = sum(values[i]);
  }

  static inline real sum(Vector value) {  // left to right
    real total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total += value[lane];
    return total;
  }
};
