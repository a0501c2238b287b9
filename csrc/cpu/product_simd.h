// The register tile of all products. Included by instruction_sets.h once per instruction set, after vector_simd.h:
// hence no include guard.
//
// The products of a tile never leave the registers. Each is the same sequence of multiply-adds wherever it lies
// (edges are padded, not treated apart), so equal descriptors have equal products.

template <typename real>
struct Tile : Lanes<real> {
  using typename Lanes<real>::Vector;
  using Lanes<real>::kLanes;
  using Lanes<real>::load;
  using Lanes<real>::store;
  static constexpr int kRows = DISK_TILE_ROWS;
  static constexpr int kVectors = 2;
  static constexpr int kColumns = kVectors * kLanes;

  // sum[r, c] = sum over k of rows[r, k] columns[k, c]
  static inline __attribute__((always_inline)) void multiply(
      const real* rows,     // element (r, k) at r * row_step + k * row_depth_step
      int64_t row_step, int64_t row_depth_step,
      const real* columns,  // [depth, column_depth_step], of which kColumns are read
      int64_t column_depth_step, int64_t depth, Vector (&sum)[kRows][kVectors]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = Vector{};
    multiply_add(rows, row_step, row_depth_step, columns, column_depth_step, depth, sum);
  }

  // The same, added to what is there.
  static inline __attribute__((always_inline)) void multiply_add(const real* rows, int64_t row_step,
                                                                 int64_t row_depth_step, const real* columns,
                                                                 int64_t column_depth_step, int64_t depth,
                                                                 Vector (&sum)[kRows][kVectors]) {
    for (int64_t k = 0; k < depth; ++k) {
      const Vector column0 = load(columns + k * column_depth_step);
      const Vector column1 = load(columns + k * column_depth_step + kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const real row = rows[r * row_step + k * row_depth_step];
        sum[r][0] += row * column0;
        sum[r][1] += row * column1;
      }
    }
  }
};
