// The inner loops of distance_matrix. Included by instruction_sets.h once per instruction set: hence no include guard.
#include "distance_simd.h"

template <typename real>
void write_distances(const RowBlock<real>& rows, const Columns<real>& columns,
                     real* out) {  // [rows.padded without the padding, columns.count]
  using T = Tile<real>;
  alignas(64) real distances[kMatrixRows * T::kColumns];
  for (int64_t column = 0; column < columns.padded; column += T::kColumns) {
    Distance<real>::panel(rows, columns, column, distances);
    const int64_t width = std::min<int64_t>(T::kColumns, columns.count - column);
    for (int64_t i = 0; i < rows.padded && rows.present[i]; ++i)
      std::memcpy(out + i * columns.count + column, distances + i * T::kColumns, width * sizeof(real));
  }
}

template <typename real>
constexpr MatrixKernel<real> kernel() {
  return {Tile<real>::kRows, Tile<real>::kColumns, &write_distances<real>};
}
