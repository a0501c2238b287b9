// The inner loops of nearest_neighbors for vectors of DISK_VECTOR_BYTES bytes. Included by nearest_neighbors_cpu.cpp
// once per instruction set, each time in a namespace of its own: hence no include guard.
//
// The products of a tile never leave the registers. Each is the same sequence of multiply-adds wherever it lies
// (edges are padded, not treated apart), so equal descriptors have equal keys and ties are exact.

template <typename real>
struct Tile {
  static constexpr int kRows = DISK_TILE_ROWS;
  static constexpr int kVectors = 2;
  static constexpr int kLanes = DISK_VECTOR_BYTES / sizeof(real);
  static constexpr int kColumns = kVectors * kLanes;

  typedef real Vector __attribute__((vector_size(DISK_VECTOR_BYTES)));
  typedef real Unaligned __attribute__((vector_size(DISK_VECTOR_BYTES), aligned(sizeof(real)), may_alias));
  typedef decltype(Vector{} < Vector{}) Mask;

  static inline Vector load(const real* from) { return *reinterpret_cast<const Unaligned*>(from); }

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
    Vector sum[kRows][kVectors] = {};
    for (int64_t k = 0; k < depth; ++k) {
      const Vector column0 = load(columns + k * kColumns), column1 = load(columns + k * kColumns + kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const real row = rows[k * kRows + r];
        sum[r][0] += row * column0;
        sum[r][1] += row * column1;
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vector key0 = (row_half[r] + load(column_half)) - sum[r][0];
      const Vector key1 = (row_half[r] + load(column_half + kLanes)) - sum[r][1];
      const Mask better = (key0 < row_second[r]) | (key1 < row_second[r]) | (key0 < load(column_second)) |
                          (key1 < load(column_second + kLanes));
      if (!any(better)) continue;
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
  using T = Tile<real>;
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
