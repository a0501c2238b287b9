// The matrix products of describe. Included by instruction_sets.h once per instruction set: hence no include guard.
//
// Every element of a product is the same sequence of multiply-adds wherever it lies (see product_simd.h), so that the
// results depend neither on the number of threads nor on how keypoints and channels are cut into blocks.

// c [rows, columns] += a [rows, depth] · b [depth, columns], or aᵀ · b with a [depth, rows].
template <typename real, bool kTransposed>
void multiply_add(Operand<real> a, Operand<real> b, int64_t rows, int64_t depth, int64_t columns, real* c,
                  int64_t c_step) {
  using T = Tile<real>;
  for (int64_t column = 0; column < columns; column += T::kColumns)
    for (int64_t row = 0; row < rows; row += T::kRows) {
      typename T::Vector sum[T::kRows][T::kVectors];
      if constexpr (kTransposed)
        T::multiply(a.data + row, 1, a.step, b.data + column, b.step, depth, sum);
      else
        T::multiply(a.data + row * a.step, a.step, 1, b.data + column, b.step, depth, sum);
#pragma GCC unroll 16
      for (int r = 0; r < T::kRows; ++r)
        for (int v = 0; v < T::kVectors; ++v) {
          real* const to = c + (row + r) * c_step + column + v * T::kLanes;
          T::store(to, T::load(to) + sum[r][v]);
        }
    }
}

template <typename real>
constexpr Product<real> kernel() {
  return {Tile<real>::kRows, Tile<real>::kColumns, &multiply_add<real, false>, &multiply_add<real, true>};
}
