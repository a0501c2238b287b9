// The inner loops of match_statistics. Included by instruction_sets.h once per instruction set: hence no include guard.
#include "distance_simd.h"

// Sums of exponentials are kept as a maximum and the sum of e^(x - maximum). The first maximum is the lowest finite
// number, not -inf: x - maximum is then never the undefined inf - inf, and e^-inf is 0.
template <typename real>
struct Statistics : Tile<real> {
  using T = Tile<real>;
  using typename T::Mask;
  using typename T::Vector;
  using T::kColumns;
  using T::kLanes;
  using T::kVectors;

  // A block of rows: its log-sum-exps over all columns, and what it adds to those of the columns.
  static void block(const RowBlock<real>& rows, const Columns<real>& columns, real inverse_temperature,
                    real* row_logsumexp,  // [rows that there are]
                    real* column_max,     // [columns.padded] of the chunk so far
                    real* column_sum) {   // [columns.padded]
    alignas(64) real logits[kStatisticsRows * kColumns];
    alignas(64) real row_max[kStatisticsRows * kLanes], row_sum[kStatisticsRows * kLanes];
    std::fill_n(row_max, rows.padded * kLanes, std::numeric_limits<real>::lowest());
    std::fill_n(row_sum, rows.padded * kLanes, real(0));
    for (int64_t column = 0; column < columns.padded; column += kColumns) {
      Distance<real>::panel(rows, columns, column, logits);
      panel(rows, columns.bias + column, inverse_temperature, logits, row_max, row_sum, column_max + column,
            column_sum + column);
    }
    for (int64_t i = 0; i < rows.padded; ++i)
      if (rows.present[i]) row_logsumexp[i] = logsumexp(row_max + i * kLanes, row_sum + i * kLanes);
  }

  static inline void panel(const RowBlock<real>& rows, const real* bias, real inverse_temperature,
                           real* logits,                  // [rows.padded, kColumns] distances
                           real* row_max, real* row_sum,  // [rows.padded, kLanes]
                           real* column_max, real* column_sum) {
    Vector most[kVectors], sum[kVectors], shift[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      most[v] = T::load(column_max + v * kLanes), shift[v] = T::load(bias + v * kLanes);
    }
    for (int64_t i = 0; i < rows.padded; ++i) {
      if (!rows.present[i]) continue;
      for (int v = 0; v < kVectors; ++v) {
        real* at = logits + i * kColumns + v * kLanes;
        const Vector logit = shift[v] - inverse_temperature * T::load(at);
        T::store(at, logit);
        most[v] = T::larger(most[v], logit);
      }
    }
    for (int v = 0; v < kVectors; ++v)
      sum[v] = T::load(column_sum + v * kLanes) * T::exp(T::load(column_max + v * kLanes) - most[v]);
    for (int64_t i = 0; i < rows.padded; ++i) {
      if (!rows.present[i]) continue;
      const Vector x0 = T::load(logits + i * kColumns), x1 = T::load(logits + i * kColumns + kLanes);
      sum[0] += T::exp(x0 - most[0]);
      sum[1] += T::exp(x1 - most[1]);
      Vector so_far = T::load(row_max + i * kLanes), row = T::load(row_sum + i * kLanes);
      const Vector larger = T::larger(T::larger(so_far, x0), x1);
      if (T::any(so_far < larger)) {  // seldom, after the first panels
        row *= T::exp(so_far - larger);
        so_far = larger;
        T::store(row_max + i * kLanes, so_far);
      }
      T::store(row_sum + i * kLanes, row + (T::exp(x0 - so_far) + T::exp(x1 - so_far)));
    }
    for (int v = 0; v < kVectors; ++v)
      T::store(column_max + v * kLanes, most[v]), T::store(column_sum + v * kLanes, sum[v]);
  }

  static inline real logsumexp(const real* most, const real* sum) {  // [kLanes] both
    const real largest = *std::max_element(most, most + kLanes);
    real total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total += sum[lane] * std::exp(most[lane] - largest);
    return log_of_sum(largest, total);
  }
};

template <typename real>
constexpr StatisticsKernel<real> kernel() {
  return {Tile<real>::kRows, Tile<real>::kColumns, &Statistics<real>::block};
}
