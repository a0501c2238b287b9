// Rewards and weights of one row against the columns of a panel. Included by the kernels that need them, once per
// instruction set, after distance_simd.h: hence no include guard.

template <typename real>
struct Weighting : Tile<real> {
  using T = Tile<real>;
  using typename T::Mask;
  using typename T::Vector;
  using T::kColumns;
  using T::kLanes;

  static inline Vector reward(const Reward<real>& rule, int64_t i, int64_t column) {  // of columns [column, + kLanes)
    return rule.dense != nullptr ? given(rule, i, column) : by_rule(rule, i, column);
  }

  static inline Vector given(const Reward<real>& rule, int64_t i, int64_t column) {
    const real* from = rule.dense + i * rule.columns + column;
    if (column + kLanes <= rule.columns) return T::load(from);
    Vector values{};
    for (int64_t lane = 0; lane < rule.columns - column; ++lane) values[lane] = from[lane];
    return values;
  }

  static inline Vector by_rule(const Reward<real>& rule, int64_t i, int64_t column) {
    const Keypoints<real>&a = rule.keypoints1, &b = rule.keypoints2;
    Mask consistent{}, correct{}, harmless{};
    if (rule.lines) {
      const Vector there = T::load(b.x + column) * a.line_x[i] + T::load(b.y + column) * a.line_y[i] + a.line_0[i];
      const Vector here = T::load(b.line_x + column) * a.x[i] + T::load(b.line_y + column) * a.y[i] +
                          T::load(b.line_0 + column);
      consistent = (there * there < a.line_width[i]) & (here * here < T::load(b.line_width + column));
      correct = consistent;
    }
    if (rule.points) {
      const Vector warped_x = T::load(b.warped_x + column), warped_y = T::load(b.warped_y + column);
      const Vector x1 = a.warped_x[i] - T::load(b.x + column), y1 = a.warped_y[i] - T::load(b.y + column);
      const Vector x2 = a.x[i] - warped_x, y2 = a.y[i] - warped_y;
      correct = (x1 * x1 + y1 * y1 < rule.epsilon_squared) & (x2 * x2 + y2 * y2 < rule.epsilon_squared);
      const bool unknown = std::isnan(a.warped_x[i]) || std::isnan(a.warped_y[i]);
      harmless = rule.official || unknown
                     ? consistent
                     : consistent & ((warped_x != warped_x) | (warped_y != warped_y));
    }
    const Vector wrong = harmless ? Vector{} : T::fill(rule.lambda_fp);
    return correct ? T::fill(rule.lambda_tp) : wrong;
  }

  // Whether columns are masked: their probabilities are 0, but a reward that is NaN there must not count either.
  static inline Mask is_hidden(const Columns<real>& columns, int64_t column) {
    return T::load(columns.bias + column) != real(0);
  }

  // weight1_i + weight2_j
  static inline Vector factor(const MatchTerms<real>& terms, int64_t i, int64_t column) {
    Vector sum = terms.weight2 != nullptr ? T::load(terms.weight2 + column) : Vector{};
    if (terms.weight1 != nullptr) sum += terms.weight1[i];
    return sum;
  }

  static inline Vector weight(const MatchTerms<real>& terms, int64_t i, int64_t column, Vector factor) {
    const Vector product = factor * reward(terms.reward, i, column);
    return terms.weight0 != nullptr ? product + terms.weight0[i] : product;
  }
};
