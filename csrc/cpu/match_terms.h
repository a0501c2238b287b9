// What the CPU kernels of matches read besides the descriptors: log-sum-exps, weights, sums and rewards.
#pragma once

#include "match_reward.h"

namespace disk_ops {

template <typename real>
struct MatchTerms {  // of one pair of images; weights and sums are null where they aren't given
  const real *logsumexp1, *weight1, *weight0, *sum1;  // [N]
  const real *logsumexp2, *weight2, *sum2;            // [M padded to whole panels]
  Reward<real> reward;
  real inverse_temperature;
  bool weighted;  // whether any weight is given
};

template <typename real>
class AllTerms {  // of the batch
 public:
  AllTerms(const at::Tensor& inverse_temperature,  // []
           const at::Tensor& logsumexp1,           // [B, N]
           const at::Tensor& logsumexp2,           // [B, M]
           const RewardArguments& rule, const WeightArguments& weights,
           const std::optional<at::Tensor>& sum1,  // [B, N]
           const std::optional<at::Tensor>& sum2,  // [B, M]
           const Pairs<real>& pairs)
      : rows_(pairs.rows),
        padded_(pairs.padded_columns),
        inverse_temperature_(*inverse_temperature.const_data_ptr<real>()),
        weighted_(weights.any()),
        logsumexp1_(padded(without_empty(logsumexp1), rows_)),
        weight1_(padded(weights.weight1, rows_)),
        weight0_(padded(weights.weight0, rows_)),
        sum1_(padded(sum1, rows_)),
        logsumexp2_(padded(without_empty(logsumexp2), padded_)),
        weight2_(padded(weights.weight2, padded_)),
        sum2_(padded(sum2, padded_)),
        rewards_(rule, pairs) {}

  MatchTerms<real> of(int64_t image) const {
    const int64_t row = image * rows_, column = image * padded_;
    return {at(logsumexp1_, row),
            at(weight1_, row),
            at(weight0_, row),
            at(sum1_, row),
            at(logsumexp2_, column),
            at(weight2_, column),
            at(sum2_, column),
            rewards_.of(image),
            inverse_temperature_,
            weighted_};
  }

 private:
  // -inf, of an empty row or column, becomes +inf: then e^(A - logsumexp) is 0 and not e^(-inf + inf).
  static at::Tensor without_empty(const at::Tensor& logsumexp) {  // [B, size]
    const real infinity = std::numeric_limits<real>::infinity();
    auto result = logsumexp.clone(at::MemoryFormat::Contiguous);
    real* values = result.template mutable_data_ptr<real>();
    std::replace(values, values + result.numel(), -infinity, infinity);
    return result;
  }

  static std::vector<real> padded(const std::optional<at::Tensor>& values, int64_t size) {  // [B, <= size]
    if (!values) return {};
    const auto whole = values->contiguous();
    const int64_t width = whole.size(1);
    std::vector<real> result(whole.size(0) * size);
    for (int64_t b = 0; b < whole.size(0); ++b)
      std::copy_n(whole.const_data_ptr<real>() + b * width, width, result.begin() + b * size);
    return result;
  }

  static const real* at(const std::vector<real>& values, int64_t i) {
    return values.empty() ? nullptr : values.data() + i;
  }

  const int64_t rows_, padded_;
  const real inverse_temperature_;
  const bool weighted_;
  const std::vector<real> logsumexp1_, weight1_, weight0_, sum1_, logsumexp2_, weight2_, sum2_;
  const Rewards<real> rewards_;
};

}  // namespace disk_ops
