// The reward r_ij of a match as the CPU kernels read it: from a dense matrix, or by rule from geometry, of which each
// image's keypoints are prepared once, coordinate by coordinate.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "../match_arguments.h"
#include "match_pairs.h"

namespace disk_ops {

// One image's keypoints. Where something isn't given, nothing is near it.
template <typename real>
struct Keypoints {
  const real *x, *y;                        // [size]
  const real *warped_x, *warped_y;          // [size] in the other image; NaN where unknown
  const real *line_x, *line_y, *line_0;     // [size] epipolar line in the other image: line_x x + line_y y + line_0 = 0
  const real* line_width;                   // [size] epsilon^2 (line_x^2 + line_y^2)
};

template <typename real>
struct Reward {  // of one pair of images
  const real* dense;  // [N, columns], or null: by rule
  int64_t columns;
  Keypoints<real> keypoints1, keypoints2;  // of N and of at least M padded to whole vectors
  real epsilon_squared, lambda_tp, lambda_fp;
  bool points, lines, official;  // whether there are warped keypoints and a fundamental matrix; which rule
};

template <typename real>
class KeypointTable {
 public:
  // `transposed`: the keypoints are of the second image, whose lines are those of the transposed matrix.
  KeypointTable(const std::optional<at::Tensor>& keypoints,    // [B, size, 2]
                const std::optional<at::Tensor>& warped,       // [B, size, 2]
                const std::optional<at::Tensor>& fundamental,  // [B, 3, 3]
                bool transposed, int64_t padded, real epsilon_squared)
      : padded_(padded) {
    if (!keypoints) return;
    const int64_t batch = keypoints->size(0), size = keypoints->size(1);
    table_.assign(batch * kFields * padded, std::numeric_limits<real>::quiet_NaN());
    const auto at = keypoints->contiguous();
    const auto to = contiguous(warped), matrices = contiguous(fundamental);
    for (int64_t b = 0; b < batch; ++b) {
      real* fields = table_.data() + b * kFields * padded;
      const real* from = at.const_data_ptr<real>() + b * size * 2;
      const real* seen = to ? to->const_data_ptr<real>() + b * size * 2 : nullptr;
      const real* matrix = matrices ? matrices->const_data_ptr<real>() + b * 9 : nullptr;
      for (int64_t i = 0; i < size; ++i) {
        const real x = from[2 * i], y = from[2 * i + 1];
        fields[i] = x, fields[padded + i] = y;
        if (seen) fields[2 * padded + i] = seen[2 * i], fields[3 * padded + i] = seen[2 * i + 1];
        if (matrix == nullptr) continue;
        const int64_t row = transposed ? 1 : 3, column = transposed ? 3 : 1;
        real line[3];
        for (int64_t k = 0; k < 3; ++k)
          line[k] = matrix[k * row] * x + matrix[k * row + column] * y + matrix[k * row + 2 * column];
        for (int64_t k = 0; k < 3; ++k) fields[(4 + k) * padded + i] = line[k];
        fields[7 * padded + i] = epsilon_squared * (line[0] * line[0] + line[1] * line[1]);
      }
    }
  }

  Keypoints<real> of(int64_t image) const {
    if (table_.empty()) return {};
    const real* fields = table_.data() + image * kFields * padded_;
    return {fields,
            fields + padded_,
            fields + 2 * padded_,
            fields + 3 * padded_,
            fields + 4 * padded_,
            fields + 5 * padded_,
            fields + 6 * padded_,
            fields + 7 * padded_};
  }

 private:
  static constexpr int64_t kFields = 8;
  int64_t padded_;
  std::vector<real> table_;  // [B, kFields, padded]
};

template <typename real>
class Rewards {
 public:
  Rewards(const RewardArguments& rule, const Pairs<real>& pairs)
      : rule_(rule),
        rows_(pairs.rows),
        columns_(pairs.columns),
        dense_(contiguous(rule.reward)),
        epsilon_squared_(static_cast<real>(rule.epsilon * rule.epsilon)),
        keypoints1_(rule.reward ? std::nullopt : rule.keypoints1, rule.warped1, rule.fundamental, false, pairs.rows,
                    epsilon_squared_),
        keypoints2_(rule.reward ? std::nullopt : rule.keypoints2, rule.warped2, rule.fundamental, true,
                    pairs.padded_columns, epsilon_squared_) {}

  Reward<real> of(int64_t image) const {
    return {dense_ ? dense_->const_data_ptr<real>() + image * rows_ * columns_ : nullptr,
            columns_,
            keypoints1_.of(image),
            keypoints2_.of(image),
            epsilon_squared_,
            static_cast<real>(rule_.lambda_tp),
            static_cast<real>(rule_.lambda_fp),
            rule_.warped1.has_value(),
            rule_.fundamental.has_value(),
            rule_.official};
  }

 private:
  const RewardArguments& rule_;
  const int64_t rows_, columns_;
  const std::optional<at::Tensor> dense_;
  const real epsilon_squared_;
  const KeypointTable<real> keypoints1_, keypoints2_;
};

}  // namespace disk_ops
