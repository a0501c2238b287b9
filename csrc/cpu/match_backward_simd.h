// The inner loops of _match_backward. Included by instruction_sets.h once per instruction set: hence no include guard.
//
// The pull of a pair is what its derivative with respect to half the squared distance comes to: the gradient is
// pull (a - b) to a and pull (b - a) to b. Summed over pairs this is two matrix products with the pulls, which are
// computed for kBackwardRows x kGroupColumns pairs at a time.
#include "distance_simd.h"
#include "match_reward_simd.h"

template <typename real>
struct Backward : Tile<real> {
  using T = Tile<real>;
  using W = Weighting<real>;
  using typename T::Mask;
  using typename T::Vector;
  using T::kColumns;
  using T::kLanes;
  using T::kRows;
  using T::kVectors;
  static constexpr int64_t kStride = kGroupColumns + 16;  // of pulls: a column of them isn't all in one cache set

  // Below this part of the mean squared norm, pull a - pull b would lose digits: the gradient comes from differences.
  static constexpr real kNear = real(4e-4);

  struct State {  // of a block
    const RowBlock<real>& rows;
    const Columns<real>& columns;
    const MatchTerms<real>& terms;
    const BlockGradients<real>& gradients;
    int64_t group;          // first column of the group
    real* others;           // [kGroupColumns, stride] the group's descriptors
    real* pulls;            // [rows.padded, kStride]
    real* pull_sums;        // [rows.padded, kLanes]
    real* pulled;           // [rows.padded, stride] sum of pull b
    Vector grad_theta;
  };

  static double block(const RowBlock<real>& rows, const Columns<real>& columns, const MatchTerms<real>& terms,
                      const BlockGradients<real>& gradients, const real* desc2, const bool* valid2) {
    alignas(64) real distances[kBackwardRows * kColumns];
    alignas(64) real pulls[kBackwardRows * kStride], pull_sums[kBackwardRows * kLanes];
    std::fill_n(pulls, rows.padded * kStride, real(0));
    std::fill_n(pull_sums, rows.padded * kLanes, real(0));
    std::vector<real> others(kGroupColumns * rows.stride), pulled(rows.padded * rows.stride);
    State state{rows, columns, terms, gradients, 0, others.data(), pulls, pull_sums, pulled.data(), Vector{}};
    for (; state.group < columns.padded; state.group += kGroupColumns) {
      const int64_t first = state.group, width = std::min(kGroupColumns, columns.padded - first);
      copy_rows(desc2 + first * columns.depth, valid2 ? valid2 + first : nullptr,
                std::min(width, columns.count - first), width, columns.depth, rows.stride, others.data());
      for (int64_t column = first; column < first + width; column += kColumns) {
        Distance<real>::panel(rows, columns, column, distances);
        for (int v = 0; v < kVectors; ++v) lanes(state, column + v * kLanes, distances + v * kLanes);
      }
      const int64_t used = round_up(width, kRows);
      for (int64_t i = 0; i < rows.padded; ++i)
        std::fill(pulls + i * kStride + width, pulls + i * kStride + used, real(0));
      accumulate(pulls, kStride, 1, rows.padded, others.data(), rows.stride, width, gradients.padded_depth,
                 pulled.data(), rows.stride);
      accumulate(pulls, 1, kStride, used, rows.desc, rows.stride, rows.padded, gradients.padded_depth,
                 gradients.column_pulled + first * gradients.padded_depth, gradients.padded_depth);
    }
    write_rows(state);
    return T::sum(state.grad_theta);
  }

  // out[r, c] += sum over k of left[r, k] right[k, c], for `rows` rows and `width` columns of whole tiles
  static void accumulate(const real* left, int64_t left_step, int64_t left_depth_step, int64_t rows,
                         const real* right, int64_t right_stride, int64_t depth, int64_t width,
                         real* out, int64_t out_stride) {
    for (int64_t column = 0; column < width; column += kColumns) {
      for (int64_t row = 0; row < rows; row += kRows) {
        Vector product[kRows][kVectors];
        T::multiply(left + row * left_step, left_step, left_depth_step, right + column, right_stride, depth, product);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          real* to = out + (row + r) * out_stride + column;
          T::store(to, T::load(to) + product[r][0]);
          T::store(to + kLanes, T::load(to + kLanes) + product[r][1]);
        }
      }
    }
  }

  // The pulls of all rows and kLanes columns.
  static inline void lanes(State& state, int64_t column, const real* distances) {  // [rows.padded, kColumns]
    const RowBlock<real>& rows = state.rows;
    const MatchTerms<real>& terms = state.terms;
    const Vector bias = T::load(state.columns.bias + column), norms = T::load(state.columns.half_norms + column);
    const Vector offset = bias - T::load(terms.logsumexp2 + column), sum2 = T::load(terms.sum2 + column);
    const Mask hidden = W::is_hidden(state.columns, column);
    real* column_pull = state.gradients.column_pull + column;
    Vector total = T::load(column_pull), grad_theta = state.grad_theta;
    for (int64_t i = 0; i < rows.padded; ++i) {
      if (!rows.present[i]) continue;  // its pulls stay 0
      const int64_t row = rows.first + i;
      const Vector distance = T::load(distances + i * kColumns);
      const Vector logit = distance * -terms.inverse_temperature;
      const Vector by_row = T::probability((logit - terms.logsumexp1[row]) + bias);
      const Vector by_column = T::probability(logit + offset);
      Vector grad = Vector{} - by_row * terms.sum1[row] - by_column * sum2;
      if (terms.weighted) {
        const Vector probability = by_row * by_column, factor = W::factor(terms, row, column);
        const Vector weighted = real(2) * probability * W::weight(terms, row, column, factor);
        grad += hidden ? Vector{} : weighted;
        if (state.gradients.reward != nullptr) write_reward(state, row, column, probability * factor);
      }
      grad_theta -= grad * distance;
      const Vector force = grad * -terms.inverse_temperature;
      const Mask near = distance * distance < (norms + rows.half_norms[i]) * kNear;
      const Mask none = near | (distance == real(0));
      const Vector pull = none ? Vector{} : force / distance;
      if (T::any(near)) from_differences(state, i, column, near, distance, force);
      total += pull;
      T::store(state.pull_sums + i * kLanes, T::load(state.pull_sums + i * kLanes) + pull);
      T::store(state.pulls + i * kStride + column - state.group, pull);
    }
    T::store(column_pull, total);
    state.grad_theta = grad_theta;
  }

  static void from_differences(State& state, int64_t i, int64_t column, Mask near, Vector distance, Vector force) {
    const int64_t depth = state.columns.depth, stride = state.rows.stride;
    const real* row = state.rows.desc + i * stride;
    real* pulled = state.pulled + i * stride;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (!near[lane] || distance[lane] == 0) continue;
      const real* other = state.others + (column - state.group + lane) * stride;
      real* column_pulled = state.gradients.column_pulled + (column + lane) * state.gradients.padded_depth;
      for (int64_t k = 0; k < depth; ++k) {
        const real part = (row[k] - other[k]) / distance[lane] * force[lane];
        pulled[k] -= part;
        column_pulled[k] += part;
      }
    }
  }

  static void write_reward(const State& state, int64_t row, int64_t column, Vector gradient) {
    real* to = state.gradients.reward + row * state.columns.count + column;
    const int64_t width = std::min<int64_t>(kLanes, state.columns.count - column);
    for (int64_t lane = 0; lane < width; ++lane) to[lane] = gradient[lane];
  }

  static void write_rows(const State& state) {
    const int64_t depth = state.columns.depth, stride = state.rows.stride;
    for (int64_t i = 0; i < state.rows.padded; ++i) {
      if (!state.rows.present[i]) continue;
      const real pull = T::sum(T::load(state.pull_sums + i * kLanes));
      real* to = state.gradients.rows + (state.rows.first + i) * depth;
      for (int64_t k = 0; k < depth; ++k)
        to[k] = state.rows.desc[i * stride + k] * pull - state.pulled[i * stride + k];
    }
  }
};

template <typename real>
constexpr BackwardKernel<real> kernel() {
  return {Tile<real>::kRows, Tile<real>::kColumns, &Backward<real>::block};
}
