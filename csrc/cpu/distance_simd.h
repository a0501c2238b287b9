// Distances of a block of rows to a panel of columns. Included by the kernels of distances and matches, once per
// instruction set: hence no include guard.

template <typename real>
struct Distance : Tile<real> {
  using T = Tile<real>;
  using typename T::Mask;
  using typename T::Vector;
  using T::kColumns;
  using T::kLanes;
  using T::kRows;
  using T::kVectors;

  // Half squared distances below this part of the mean squared norm are computed from differences: there the
  // product has lost the leading digits, and equal descriptors must be at distance 0.
  static constexpr real kNear = real(0.05);

  static void from_differences(const real* row,      // [depth]
                               const real* columns,  // [depth, kColumns]
                               int64_t depth, Mask (&near)[kVectors], Vector (&half)[kVectors]) {
    Vector squares[kVectors] = {};
    for (int64_t k = 0; k < depth; ++k) {
      for (int v = 0; v < kVectors; ++v) {
        const Vector difference = row[k] - T::load(columns + k * kColumns + v * kLanes);
        squares[v] += difference * difference;
      }
    }
    for (int v = 0; v < kVectors; ++v) half[v] = near[v] ? squares[v] / 2 : half[v];
  }

  static inline void panel(const RowBlock<real>& rows, const Columns<real>& columns, int64_t column,
                           real* distances) {  // [rows.padded, kColumns]
    const real* packed = columns.packed + column * columns.depth;
    const real* half_norms = columns.half_norms + column;
    const Vector norms[kVectors] = {T::load(half_norms), T::load(half_norms + kLanes)};
    for (int64_t first = 0; first < rows.padded; first += kRows) {
      Vector product[kRows][kVectors];
      T::multiply(rows.desc + first * rows.stride, rows.stride, 1, packed, kColumns, columns.depth, product);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v)
          T::store(distances + (first + r) * kColumns + v * kLanes, product[r][v]);
      for (int64_t i = first; i < first + kRows; ++i) {
        Vector half[kVectors];
        Mask near[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          const Vector norm = rows.half_norms[i] + norms[v];
          half[v] = norm - T::load(distances + i * kColumns + v * kLanes);
          near[v] = ~(half[v] >= norm * kNear);  // NaN too, which infinite norms make of equal descriptors
        }
        if (T::any(near[0] | near[1])) from_differences(rows.desc + i * rows.stride, packed, columns.depth, near, half);
        for (int v = 0; v < kVectors; ++v)
          T::store(distances + i * kColumns + v * kLanes, T::square_root(half[v] + half[v]));
      }
    }
  }
};
