// The inner loops of nearest_neighbors. Included by instruction_sets.h once per instruction set: hence no include
// guard. Ties are exact: see product_simd.h.

template <typename real>
struct KeyTile : Tile<real> {
  using typename Tile<real>::Vector;
  using typename Tile<real>::Mask;
  using Tile<real>::kRows;
  using Tile<real>::kVectors;
  using Tile<real>::kLanes;
  using Tile<real>::kColumns;
  using Tile<real>::load;

  // Keys (half squared distances) of kRows x kColumns pairs; calls improve(row, keys of that row) for each row in
  // which a descriptor gains a neighbour.
  template <typename Improve>
  static inline void run(const real* rows,           // [depth, kRows] packed
                         const real* columns,        // [depth, kColumns] packed
                         int64_t depth,              //
                         const real* row_half,       // [kRows] half squared norms
                         const real* column_half,    // [kColumns]
                         const real* row_second,     // [kRows] second smallest keys so far
                         const real* column_second,  // [kColumns]
                         const Improve& improve) {
    Vector sum[kRows][kVectors];
    Tile<real>::multiply(rows, 1, kRows, columns, kColumns, depth, sum);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vector key0 = (row_half[r] + load(column_half)) - sum[r][0];
      const Vector key1 = (row_half[r] + load(column_half + kLanes)) - sum[r][1];
      const Mask better = (key0 < row_second[r]) | (key1 < row_second[r]) | (key0 < load(column_second)) |
                          (key1 < load(column_second + kLanes));
      if (!Tile<real>::any(better)) continue;
      real keys[kColumns];
      std::memcpy(keys, &key0, sizeof(key0));
      std::memcpy(keys + kLanes, &key1, sizeof(key1));
      improve(r, keys);
    }
  }
};

// A block of packed rows against all packed columns.
template <typename real>
void search_block(const RowBlock<real>& block, const Columns<real>& columns, TopTwo<real>& row_best,
                  TopTwo<real>& column_best) {
  using T = KeyTile<real>;
  const int64_t depth = columns.depth;
  for (int64_t column = 0; column < columns.padded; column += T::kColumns) {
    for (int64_t row = 0; row < block.padded; row += T::kRows) {
      T::run(block.packed + row * depth, columns.packed + column * depth, depth, block.half_norms + row,
             columns.half_norms + column, row_best.second.data() + row, column_best.second.data() + column,
             [&](int r, const real* keys) {
               for (int c = 0; c < T::kColumns; ++c) {
                 row_best.insert(row + r, keys[c], static_cast<int32_t>(column + c));
                 column_best.insert(column + c, keys[c], static_cast<int32_t>(block.first + row + r));
               }
             });
    }
  }
}

template <typename real>
constexpr Kernel<real> kernel() {
  return {Tile<real>::kRows, Tile<real>::kColumns, &search_block<real>};
}
