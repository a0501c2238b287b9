// What the ops on matches accept, checked once for every device. Each message names the argument and what came.
#pragma once

#include <initializer_list>

#include "arguments.h"

namespace disk_ops {

inline at::ScalarType result_dtype(const at::Tensor& desc) {  // [B, N, D]
  return desc.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// The arguments that define the reward of a match: a dense matrix, or geometry from which it is computed.
struct RewardArguments {
  std::optional<at::Tensor> reward;       // [B, N, M]
  std::optional<at::Tensor> keypoints1;   // [B, N, 2] xy in image 1
  std::optional<at::Tensor> keypoints2;   // [B, M, 2] xy in image 2
  std::optional<at::Tensor> warped1;      // [B, N, 2] keypoints1 seen in image 2, NaN where unknown
  std::optional<at::Tensor> warped2;      // [B, M, 2] keypoints2 seen in image 1, NaN where unknown
  std::optional<at::Tensor> fundamental;  // [B, 3, 3], x2^T F x1 = 0
  double epsilon, lambda_tp, lambda_fp;
  bool official;
};

// w_ij = (weight1_i + weight2_j) r_ij + weight0_i, where a missing weight is 0.
struct WeightArguments {
  std::optional<at::Tensor> weight1;  // [B, N]
  std::optional<at::Tensor> weight2;  // [B, M]
  std::optional<at::Tensor> weight0;  // [B, N]

  bool any() const { return weight1 || weight2 || weight0; }
};

// `tensor` accompanies the descriptors: their device, the dtype of the results, and this shape.
inline void check_beside(const at::Tensor& tensor, const char* name, const at::Tensor& desc1,
                         std::initializer_list<int64_t> shape) {
  const at::IntArrayRef expected(shape.begin(), shape.size());
  TORCH_CHECK(tensor.sizes() == expected, name, " must have shape ", expected, ", got ", tensor.sizes());
  check_companion(tensor, name, desc1, "desc1", result_dtype(desc1));
}
inline void check_beside(const std::optional<at::Tensor>& tensor, const char* name, const at::Tensor& desc1,
                         std::initializer_list<int64_t> shape) {
  if (tensor) check_beside(*tensor, name, desc1, shape);
}

inline void check_match_statistics(const at::Tensor& desc1,                    // [B, N, D]
                                   const at::Tensor& desc2,                    // [B, M, D]
                                   const at::Tensor& inverse_temperature,      // []
                                   const std::optional<at::Tensor>& valid1,    // [B, N] bool
                                   const std::optional<at::Tensor>& valid2) {  // [B, M] bool
  check_descriptors(desc1, desc2);
  check_beside(inverse_temperature, "inverse_temperature", desc1, {});
  check_valid(valid1, "valid1", desc1, "desc1");
  check_valid(valid2, "valid2", desc2, "desc2");
}

inline void check_reward(const RewardArguments& rule, const at::Tensor& desc1, const at::Tensor& desc2) {
  const int64_t batch = desc1.size(0), rows = desc1.size(1), columns = desc2.size(1);
  check_beside(rule.reward, "reward", desc1, {batch, rows, columns});
  check_beside(rule.keypoints1, "keypoints1", desc1, {batch, rows, 2});
  check_beside(rule.keypoints2, "keypoints2", desc1, {batch, columns, 2});
  check_beside(rule.warped1, "warped1", desc1, {batch, rows, 2});
  check_beside(rule.warped2, "warped2", desc1, {batch, columns, 2});
  check_beside(rule.fundamental, "fundamental", desc1, {batch, 3, 3});
  TORCH_CHECK(rule.warped1.has_value() == rule.warped2.has_value(), "warped1 and warped2 must be given together, got ",
              rule.warped1 ? "warped1" : "warped2", " alone");
}

inline void check_match_sums(const at::Tensor& desc1,                  // [B, N, D]
                             const at::Tensor& desc2,                  // [B, M, D]
                             const at::Tensor& inverse_temperature,    // []
                             const std::optional<at::Tensor>& valid1,  // [B, N] bool
                             const std::optional<at::Tensor>& valid2,  // [B, M] bool
                             const at::Tensor& logsumexp1,             // [B, N]
                             const at::Tensor& logsumexp2,             // [B, M]
                             const RewardArguments& rule, const WeightArguments& weights, bool needs_reward) {
  check_match_statistics(desc1, desc2, inverse_temperature, valid1, valid2);
  const int64_t batch = desc1.size(0), rows = desc1.size(1), columns = desc2.size(1);
  check_beside(logsumexp1, "logsumexp1", desc1, {batch, rows});
  check_beside(logsumexp2, "logsumexp2", desc1, {batch, columns});
  check_reward(rule, desc1, desc2);
  TORCH_CHECK(!needs_reward || rule.reward || (rule.keypoints1 && rule.keypoints2),
              "reward must be given, or keypoints1 and keypoints2, got neither");
  check_beside(weights.weight1, "weight1", desc1, {batch, rows});
  check_beside(weights.weight2, "weight2", desc1, {batch, columns});
  check_beside(weights.weight0, "weight0", desc1, {batch, rows});
}

inline void check_match_backward(const at::Tensor& desc1,                  // [B, N, D]
                                 const at::Tensor& desc2,                  // [B, M, D]
                                 const at::Tensor& inverse_temperature,    // []
                                 const std::optional<at::Tensor>& valid1,  // [B, N] bool
                                 const std::optional<at::Tensor>& valid2,  // [B, M] bool
                                 const at::Tensor& logsumexp1,             // [B, N]
                                 const at::Tensor& logsumexp2,             // [B, M]
                                 const RewardArguments& rule, const WeightArguments& weights,
                                 const at::Tensor& sum1,    // [B, N]
                                 const at::Tensor& sum2) {  // [B, M]
  check_match_sums(desc1, desc2, inverse_temperature, valid1, valid2, logsumexp1, logsumexp2, rule, weights,
                   weights.any());
  check_beside(sum1, "sum1", desc1, {desc1.size(0), desc1.size(1)});
  check_beside(sum2, "sum2", desc1, {desc1.size(0), desc2.size(1)});
}

}  // namespace disk_ops
