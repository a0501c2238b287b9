// The inner loops of _match_sums. Included by instruction_sets.h once per instruction set: hence no include guard.
#include "distance_simd.h"
#include "match_reward_simd.h"

template <typename real>
struct Sums : Tile<real> {
  using T = Tile<real>;
  using W = Weighting<real>;
  using typename T::Mask;
  using typename T::Vector;
  using T::kColumns;
  using T::kLanes;
  using T::kVectors;

  static void block(const RowBlock<real>& rows, const Columns<real>& columns, const MatchTerms<real>& terms,
                    real* row_sums, real* row_probabilities,  // [rows that there are]
                    real* column_sums) {                      // [columns.padded], of the chunk so far
    alignas(64) real distances[kSumsRows * kColumns];
    alignas(64) real weighted[kSumsRows * kLanes], probabilities[kSumsRows * kLanes];
    std::fill_n(weighted, rows.padded * kLanes, real(0));
    std::fill_n(probabilities, rows.padded * kLanes, real(0));
    for (int64_t column = 0; column < columns.padded; column += kColumns) {
      Distance<real>::panel(rows, columns, column, distances);
      for (int64_t i = 0; i < kVectors; ++i)
        lanes(rows, columns, terms, column + i * kLanes, distances + i * kLanes, weighted, probabilities, column_sums);
    }
    for (int64_t i = 0; i < rows.padded; ++i) {
      if (!rows.present[i]) continue;
      row_sums[i] = T::sum(T::load(weighted + i * kLanes));
      row_probabilities[i] = T::sum(T::load(probabilities + i * kLanes));
    }
  }

  // All rows against kLanes columns.
  static inline void lanes(const RowBlock<real>& rows, const Columns<real>& columns, const MatchTerms<real>& terms,
                           int64_t column,
                           const real* distances,                  // [rows.padded, kColumns], of which kLanes
                           real* weighted, real* probabilities,    // [rows.padded, kLanes]
                           real* column_sums) {
    const Vector offset = T::load(columns.bias + column) - T::load(terms.logsumexp2 + column);
    const Mask hidden = W::is_hidden(columns, column);
    Vector total = T::load(column_sums + column);
    for (int64_t i = 0; i < rows.padded; ++i) {
      if (!rows.present[i]) continue;
      const int64_t row = rows.first + i;
      const Vector logit = T::load(distances + i * kColumns) * -terms.inverse_temperature;
      const Vector probability = T::exp(T::at_most_0((logit - terms.logsumexp1[row]) + (logit + offset)));
      const Vector weight = terms.weighted ? W::weight(terms, row, column, W::factor(terms, row, column))
                                           : W::reward(terms.reward, row, column);
      const Vector product = hidden ? Vector{} : probability * weight;
      total += product;
      T::store(weighted + i * kLanes, T::load(weighted + i * kLanes) + product);
      T::store(probabilities + i * kLanes, T::load(probabilities + i * kLanes) + probability);
    }
    T::store(column_sums + column, total);
  }
};

template <typename real>
constexpr SumsKernel<real> kernel() {
  return {Tile<real>::kRows, Tile<real>::kColumns, &Sums<real>::block};
}
