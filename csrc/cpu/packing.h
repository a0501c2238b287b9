// Descriptors laid out for the register tiles of product_simd.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace disk_ops {

inline int64_t round_up(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

// Copies `count` rows into panels of `width` rows, transposed, and computes half their squared norms.
template <typename real>
void pack(const real* desc,   // [count, depth]
          const bool* valid,  // [count] or null
          int64_t count, int64_t padded, int64_t depth, int64_t width,
          real absent_norm,    // the norm of rows that aren't valid or lie beyond count; their elements are 0
          real* packed,        // [padded / width, depth, width]
          real* half_norms) {  // [padded]
  for (int64_t row = 0; row < padded; ++row) {
    real* to = packed + row / width * width * depth + row % width;
    const real* from = desc + row * depth;
    const bool absent = row >= count || (valid != nullptr && !valid[row]);
    real squares = 0;
    for (int64_t k = 0; k < depth; ++k) {
      to[k * width] = absent ? real(0) : from[k];
      squares += to[k * width] * to[k * width];
    }
    half_norms[row] = absent ? absent_norm : squares / 2;
  }
}

// Copies `count` rows side by side, `stride` elements apart; zeros where there is nothing.
template <typename real>
void copy_rows(const real* desc,   // [count, depth]
               const bool* valid,  // [count] or null
               int64_t count, int64_t padded, int64_t depth, int64_t stride,
               real* to) {  // [padded, stride]
  for (int64_t row = 0; row < padded; ++row, to += stride) {
    const bool absent = row >= count || (valid != nullptr && !valid[row]);
    if (!absent) std::copy_n(desc + row * depth, depth, to);
    std::fill(to + (absent ? 0 : depth), to + stride, real(0));
  }
}

}  // namespace disk_ops
