// match_statistics, _match_sums and _match_backward on tensors: allocation, launches. Shared by the CUDA glue and the
// emulated ops of the tests, so that the tests see the real sizes of buffers.
#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <tuple>
#include <vector>

#include "match_kernel.h"
#include "packed_tensors.h"

namespace disk_ops {

using OptionalTensor = std::optional<at::Tensor>;
using LogSumExps = std::tuple<at::Tensor, at::Tensor>;
using MatchSums = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using MatchGradientTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Both sides of the matches: what is given, contiguous, and scratch. Keeps alive what its pointers point at.
template <typename T>
class MatchTensors {
 public:
  using C = computing<T>;
  MatchSide<T> side1{}, side2{};
  MatchRule<C> rule{};
  const C* theta = nullptr;
  int64_t batch, depth;
  int rows, columns;
  at::TensorOptions options;  // of the results

  MatchTensors(const at::Tensor& desc1, const at::Tensor& desc2, const at::Tensor& inverse_temperature,
               const OptionalTensor& valid1, const OptionalTensor& valid2)  // shapes as the reference has them
      : batch(desc1.size(0)),
        depth(desc1.size(2)),
        rows(static_cast<int>(desc1.size(1))),
        columns(static_cast<int>(desc2.size(1))),
        options(desc1.options().dtype(result_dtype(desc1))),
        packed1_(desc1),
        packed2_(desc2) {
    fill(side1, packed1_, valid1), fill(side2, packed2_, valid2);
    theta = numbers(inverse_temperature);
  }

  void add_points(const at::Tensor& logsumexp1, const at::Tensor& logsumexp2, const RewardArguments& reward,
                  const WeightArguments& weights) {
    side1.logsumexp = numbers(logsumexp1), side2.logsumexp = numbers(logsumexp2);
    side1.keypoints = numbers(reward.keypoints1), side2.keypoints = numbers(reward.keypoints2);
    side1.warped = numbers(reward.warped1), side2.warped = numbers(reward.warped2);
    side1.weight = numbers(weights.weight1), side2.weight = numbers(weights.weight2);
    side1.weight0 = numbers(weights.weight0);
    side1.points = points(rows), side2.points = points(columns);
    if (reward.reward) {
      rule.reward = keep(*reward.reward).template const_data_ptr<C>();
      for (int i = 0; i < 3; ++i) rule.strides[i] = reward.reward->stride(i);
    }
    rule.fundamental = numbers(reward.fundamental);
    rule.has_keypoints = side1.keypoints != nullptr && side2.keypoints != nullptr;
    rule.has_warped = reward.warped1.has_value();
    rule.official = reward.official, rule.weighted = weights.any();
    rule.squared_epsilon = static_cast<C>(reward.epsilon * reward.epsilon);
    rule.lambda_tp = static_cast<C>(reward.lambda_tp), rule.lambda_fp = static_cast<C>(reward.lambda_fp);
  }
  void add_sums(const at::Tensor& sum1, const at::Tensor& sum2) {
    side1.sum = numbers(sum1), side2.sum = numbers(sum2);
  }

  C* scratch(int64_t size) { return keep(at::empty({size}, options)).template mutable_data_ptr<C>(); }
  SumScratch<C> sum_scratch() {
    const int64_t ranges1 = ranges_of_sums<C>(rows).count, ranges2 = ranges_of_sums<C>(columns).count;
    return {scratch(ranges2 * batch * rows * 2), scratch(ranges1 * batch * columns * 2)};
  }
  GradientScratch<C> gradient_scratch() {
    const int dimensions = static_cast<int>(depth), padded = packed_depth(dimensions);
    const int64_t ranges1 = ranges_of_gradient<C>(rows, columns, batch, dimensions).count;
    const int64_t ranges2 = ranges_of_gradient<C>(columns, rows, batch, dimensions).count;
    return {scratch(ranges1 * batch * rows * padded), scratch(ranges2 * batch * columns * padded),
            scratch(batch * tiles_of(rows, kPairTile<C>) * ranges1)};
  }
  bool is_empty() const { return batch == 0 || rows == 0 || columns == 0; }

 private:
  PackedTensors<T> packed1_, packed2_;
  std::vector<at::Tensor> kept_;

  const at::Tensor& keep(const at::Tensor& tensor) { return kept_.emplace_back(tensor); }
  const C* numbers(const OptionalTensor& tensor) {
    return tensor ? keep(tensor->contiguous()).template const_data_ptr<C>() : nullptr;
  }
  MatchPoint<C>* points(int64_t count) {
    return reinterpret_cast<MatchPoint<C>*>(
        scratch(batch * count * static_cast<int64_t>(sizeof(MatchPoint<C>) / sizeof(C))));
  }
  void fill(MatchSide<T>& side, const PackedTensors<T>& packed, const OptionalTensor& valid) {
    side.desc = packed.elements(), side.packed = packed.pointers;
    side.valid = valid ? keep(valid->contiguous()).template const_data_ptr<bool>() : nullptr;
  }
};

inline void check_launched(cudaError_t error, const char* op) {
  TORCH_CHECK(error == cudaSuccess, op, " failed to launch: ", cudaGetErrorString(error));
}

// In all of these, arguments are checked, and the descriptors' device is current.
inline LogSumExps match_statistics_on_stream(const at::Tensor& desc1,                // [B, N, D]
                                             const at::Tensor& desc2,                // [B, M, D]
                                             const at::Tensor& inverse_temperature,  // []
                                             const OptionalTensor& valid1,           // [B, N] bool
                                             const OptionalTensor& valid2,           // [B, M] bool
                                             cudaStream_t stream) {
  check_tiles(desc1, desc2);
  return with_element_type(desc1.scalar_type(), [&](auto element) -> LogSumExps {
    using T = decltype(element);
    using C = computing<T>;
    MatchTensors<T> given(desc1, desc2, inverse_temperature, valid1, valid2);
    constexpr double kEmpty = -std::numeric_limits<double>::infinity();
    auto logsumexp1 = at::full({given.batch, given.rows}, kEmpty, given.options);
    auto logsumexp2 = at::full({given.batch, given.columns}, kEmpty, given.options);
    if (!given.is_empty())
      check_launched(launch_match_statistics<T>(given.side1, given.side2, given.batch, static_cast<int>(given.depth),
                                                given.theta, given.sum_scratch(),
                                                logsumexp1.template mutable_data_ptr<C>(),
                                                logsumexp2.template mutable_data_ptr<C>(), stream),
                     "match_statistics");
    return {logsumexp1, logsumexp2};
  });
}

inline MatchSums match_sums_on_stream(const at::Tensor& desc1,                // [B, N, D]
                                      const at::Tensor& desc2,                // [B, M, D]
                                      const at::Tensor& inverse_temperature,  // []
                                      const OptionalTensor& valid1,           // [B, N] bool
                                      const OptionalTensor& valid2,           // [B, M] bool
                                      const at::Tensor& logsumexp1,           // [B, N]
                                      const at::Tensor& logsumexp2,           // [B, M]
                                      const RewardArguments& reward, const WeightArguments& weights,
                                      cudaStream_t stream) {
  check_tiles(desc1, desc2);
  return with_element_type(desc1.scalar_type(), [&](auto element) -> MatchSums {
    using T = decltype(element);
    using C = computing<T>;
    MatchTensors<T> given(desc1, desc2, inverse_temperature, valid1, valid2);
    auto sum1 = at::zeros({given.batch, given.rows}, given.options);
    auto sum2 = at::zeros({given.batch, given.columns}, given.options);
    auto probability1 = at::zeros({given.batch, given.rows}, given.options);
    if (!given.is_empty()) {
      given.add_points(logsumexp1, logsumexp2, reward, weights);
      check_launched(
          launch_match_sums<T>(given.side1, given.side2, given.rule, given.batch, static_cast<int>(given.depth),
                               given.theta, given.sum_scratch(), sum1.template mutable_data_ptr<C>(),
                               sum2.template mutable_data_ptr<C>(), probability1.template mutable_data_ptr<C>(),
                               stream),
          "_match_sums");
    }
    return {sum1, sum2, probability1};
  });
}

inline MatchGradientTensors match_backward_on_stream(const at::Tensor& desc1,                // [B, N, D]
                                                     const at::Tensor& desc2,                // [B, M, D]
                                                     const at::Tensor& inverse_temperature,  // []
                                                     const OptionalTensor& valid1,           // [B, N] bool
                                                     const OptionalTensor& valid2,           // [B, M] bool
                                                     const at::Tensor& logsumexp1,           // [B, N]
                                                     const at::Tensor& logsumexp2,           // [B, M]
                                                     const RewardArguments& reward, const WeightArguments& weights,
                                                     const at::Tensor& sum1,  // [B, N]
                                                     const at::Tensor& sum2,  // [B, M]
                                                     bool reward_gradient, cudaStream_t stream) {
  check_tiles(desc1, desc2);
  return with_element_type(desc1.scalar_type(), [&](auto element) -> MatchGradientTensors {
    using T = decltype(element);
    using C = computing<T>;
    MatchTensors<T> given(desc1, desc2, inverse_temperature, valid1, valid2);
    const auto dtype = desc1.scalar_type();
    const auto wanted = [&] {
      return reward_gradient ? at::empty({given.batch, given.rows, given.columns}, given.options)
                             : at::empty({0}, given.options);
    };
    if (given.is_empty())
      return {at::zeros(desc1.sizes(), desc1.options()), at::zeros(desc2.sizes(), desc2.options()),
              at::zeros({given.batch}, given.options), wanted()};
    auto grad1 = at::empty(desc1.sizes(), given.options), grad2 = at::empty(desc2.sizes(), given.options);
    auto grad_theta = at::empty({given.batch}, given.options), grad_reward = wanted();
    given.add_points(logsumexp1, logsumexp2, reward, weights);
    given.add_sums(sum1, sum2);
    const MatchGradients<C> gradients{grad1.template mutable_data_ptr<C>(), grad2.template mutable_data_ptr<C>(),
                                      grad_theta.template mutable_data_ptr<C>(),
                                      reward_gradient ? grad_reward.template mutable_data_ptr<C>() : nullptr};
    check_launched(
        launch_match_backward<T>(given.side1, given.side2, given.rule, given.batch, static_cast<int>(given.depth),
                                 given.theta, given.gradient_scratch(), gradients, stream),
        "_match_backward");
    return {grad1.to(dtype), grad2.to(dtype), grad_theta, grad_reward};
  });
}

}  // namespace disk_ops
