// match_statistics, _match_sums and _match_backward for CUDA tensors.
#include "../library.h"
#include "match_launch.h"
#include "stream.h"

namespace disk_ops {
namespace {

LogSumExps match_statistics(const at::Tensor& desc1,                // [B, N, D]
                            const at::Tensor& desc2,                // [B, M, D]
                            const at::Tensor& inverse_temperature,  // []
                            const OptionalTensor& valid1,           // [B, N] bool
                            const OptionalTensor& valid2) {         // [B, M] bool
  check_match_statistics(desc1, desc2, inverse_temperature, valid1, valid2);
  const DeviceStream stream(desc1);
  return match_statistics_on_stream(desc1, desc2, inverse_temperature, valid1, valid2, stream.get());
}

MatchSums match_sums(const at::Tensor& desc1,                // [B, N, D]
                     const at::Tensor& desc2,                // [B, M, D]
                     const at::Tensor& inverse_temperature,  // []
                     const OptionalTensor& valid1,           // [B, N] bool
                     const OptionalTensor& valid2,           // [B, M] bool
                     const at::Tensor& logsumexp1,           // [B, N]
                     const at::Tensor& logsumexp2,           // [B, M]
                     const OptionalTensor& reward,           // [B, N, M]
                     const OptionalTensor& keypoints1,       // [B, N, 2]
                     const OptionalTensor& keypoints2,       // [B, M, 2]
                     const OptionalTensor& warped1,          // [B, N, 2]
                     const OptionalTensor& warped2,          // [B, M, 2]
                     const OptionalTensor& fundamental,      // [B, 3, 3]
                     double epsilon, double lambda_tp, double lambda_fp, bool official,
                     const OptionalTensor& weight1,    // [B, N]
                     const OptionalTensor& weight2,    // [B, M]
                     const OptionalTensor& weight0) {  // [B, N]
  const RewardArguments rule{reward,      keypoints1, keypoints2, warped1,   warped2,
                             fundamental, epsilon,    lambda_tp,  lambda_fp, official};
  const WeightArguments weights{weight1, weight2, weight0};
  check_match_sums(desc1, desc2, inverse_temperature, valid1, valid2, logsumexp1, logsumexp2, rule, weights, true);
  const DeviceStream stream(desc1);
  return match_sums_on_stream(desc1, desc2, inverse_temperature, valid1, valid2, logsumexp1, logsumexp2, rule, weights,
                              stream.get());
}

MatchGradientTensors match_backward(const at::Tensor& desc1,                // [B, N, D]
                                    const at::Tensor& desc2,                // [B, M, D]
                                    const at::Tensor& inverse_temperature,  // []
                                    const OptionalTensor& valid1,           // [B, N] bool
                                    const OptionalTensor& valid2,           // [B, M] bool
                                    const at::Tensor& logsumexp1,           // [B, N]
                                    const at::Tensor& logsumexp2,           // [B, M]
                                    const OptionalTensor& reward,           // [B, N, M]
                                    const OptionalTensor& keypoints1,       // [B, N, 2]
                                    const OptionalTensor& keypoints2,       // [B, M, 2]
                                    const OptionalTensor& warped1,          // [B, N, 2]
                                    const OptionalTensor& warped2,          // [B, M, 2]
                                    const OptionalTensor& fundamental,      // [B, 3, 3]
                                    double epsilon, double lambda_tp, double lambda_fp, bool official,
                                    const OptionalTensor& weight1,  // [B, N]
                                    const OptionalTensor& weight2,  // [B, M]
                                    const OptionalTensor& weight0,  // [B, N]
                                    const at::Tensor& sum1,         // [B, N]
                                    const at::Tensor& sum2,         // [B, M]
                                    bool reward_gradient) {
  const RewardArguments rule{reward,      keypoints1, keypoints2, warped1,   warped2,
                             fundamental, epsilon,    lambda_tp,  lambda_fp, official};
  const WeightArguments weights{weight1, weight2, weight0};
  check_match_backward(desc1, desc2, inverse_temperature, valid1, valid2, logsumexp1, logsumexp2, rule, weights, sum1,
                       sum2);
  const DeviceStream stream(desc1);
  return match_backward_on_stream(desc1, desc2, inverse_temperature, valid1, valid2, logsumexp1, logsumexp2, rule,
                                  weights, sum1, sum2, reward_gradient, stream.get());
}

}  // namespace

DISK_CUDA_KERNELS(m) {
  m.impl("match_statistics", &match_statistics);
  m.impl("_match_sums", &match_sums);
  m.impl("_match_backward", &match_backward);
}

}  // namespace disk_ops
