// _match_backward on the CPU: the exact gradient of the expected reward, and of the log-sum-exps, block by block.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "match_terms.h"

namespace disk_ops {
namespace {

// Multiples of the rows and columns of every tile. A block's descriptors, those of a group of columns, both their
// gradients and the numbers between them stay in the second-level cache.
constexpr int64_t kBackwardRows = 96, kGroupColumns = 96;
constexpr int64_t kBackwardChunks = 8;             // each with a gradient to desc2 of its own
constexpr int64_t kPartialElements = int64_t(8) << 20;  // of those gradients at a time, if there are several images

template <typename real>
struct BlockGradients {
  real* rows;           // [N, D] gradient to desc1
  real* column_pull;    // [padded columns] sum of pulls, of the chunk so far
  real* column_pulled;  // [padded columns, padded_depth] sum of pull a, of the chunk so far
  real* reward;         // [N, M] or null
  int64_t padded_depth;
};

template <typename real>
struct BackwardKernel {
  int64_t rows, columns;  // of a tile
  double (*block)(const RowBlock<real>&, const Columns<real>&, const MatchTerms<real>&, const BlockGradients<real>&,
                  const real*, const bool*);  // returns the gradient to the inverse temperature
};

}  // namespace
}  // namespace disk_ops

#define DISK_KERNELS "match_backward_simd.h"
#include "instruction_sets.h"

namespace disk_ops {
namespace {

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

template <typename real>
class MatchBackward {
 public:
  MatchBackward(const Pairs<real>& pairs, const AllTerms<real>& terms, const BackwardKernel<real>& kernel,
                const at::TensorOptions& options, bool reward_gradient)
      : grad1(at::zeros({pairs.batch, pairs.rows, pairs.depth}, options)),
        grad2(at::empty({pairs.batch, pairs.columns, pairs.depth}, options)),
        grad_theta(at::zeros({pairs.batch}, options)),
        grad_reward(reward_gradient ? at::zeros({pairs.batch, pairs.rows, pairs.columns}, options)
                                    : at::empty({0}, options)),
        pairs_(pairs),
        terms_(terms),
        kernel_(kernel),
        reward_gradient_(reward_gradient),
        padded_depth_(round_up(pairs.depth, kernel.columns)),
        padded_columns_(round_up(pairs.columns, kGroupColumns)),
        images_(std::max<int64_t>(1, kPartialElements / std::max<int64_t>(1, elements_of_image()))),
        column_pull_(std::min(images_, pairs.batch) * pairs.chunks.count * padded_columns_),
        column_pulled_(std::min(images_, pairs.batch) * elements_of_image()),
        theta_parts_(pairs.batch * pairs.chunks.blocks) {}

  void run() {
    for (int64_t image = 0; image < pairs_.batch; image += images_) {
      const int64_t count = std::min(images_, pairs_.batch - image);
      if (image > 0) {
        std::fill(column_pull_.begin(), column_pull_.end(), real(0));
        std::fill(column_pulled_.begin(), column_pulled_.end(), real(0));
      }
      pairs_.for_each_block(image, count, [&](int64_t i, int64_t chunk, const RowBlock<real>& rows) {
        add_block(i, (i - image) * pairs_.chunks.count + chunk, rows);
      });
      write_columns(image, count);
    }
    for (int64_t image = 0; image < pairs_.batch; ++image) {
      double total = 0;
      for (int64_t k = 0; k < pairs_.chunks.blocks; ++k) total += theta_parts_[image * pairs_.chunks.blocks + k];
      grad_theta.template mutable_data_ptr<real>()[image] = static_cast<real>(total);
    }
  }

  at::Tensor grad1, grad2, grad_theta, grad_reward;

 private:
  int64_t elements_of_image() const { return pairs_.chunks.count * padded_columns_ * padded_depth_; }

  void add_block(int64_t image, int64_t partial, const RowBlock<real>& rows) {
    real* reward = nullptr;
    if (reward_gradient_)
      reward = grad_reward.template mutable_data_ptr<real>() + image * pairs_.rows * pairs_.columns;
    const BlockGradients<real> gradients{grad1.template mutable_data_ptr<real>() + image * pairs_.rows * pairs_.depth,
                                         column_pull_.data() + partial * padded_columns_,
                                         column_pulled_.data() + partial * padded_columns_ * padded_depth_, reward,
                                         padded_depth_};
    theta_parts_[image * pairs_.chunks.blocks + rows.first / pairs_.chunks.block_rows] =
        kernel_.block(rows, pairs_.columns_of(image), terms_.of(image), gradients, pairs_.desc2_of(image),
                      pairs_.valid2_of(image));
  }

  // Adds up the chunks' parts, in order.
  void write_columns(int64_t first_image, int64_t images) {
    real* out = grad2.template mutable_data_ptr<real>();
    const int64_t chunks = pairs_.chunks.count, depth = pairs_.depth;
    at::parallel_for(0, images * pairs_.columns, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t image = i / pairs_.columns, column = i % pairs_.columns;
        const bool* valid = pairs_.valid2_of(first_image + image);
        real* to = out + (first_image * pairs_.columns + i) * depth;
        std::fill_n(to, depth, real(0));
        if (valid != nullptr && !valid[column]) continue;
        real pull = 0;
        for (int64_t c = image * chunks; c < (image + 1) * chunks; ++c) {
          pull += column_pull_[c * padded_columns_ + column];
          const real* pulled = column_pulled_.data() + (c * padded_columns_ + column) * padded_depth_;
          for (int64_t k = 0; k < depth; ++k) to[k] -= pulled[k];
        }
        const real* desc = pairs_.desc2_of(first_image + image) + column * depth;
        for (int64_t k = 0; k < depth; ++k) to[k] += desc[k] * pull;
      }
    });
  }

  const Pairs<real>& pairs_;
  const AllTerms<real>& terms_;
  const BackwardKernel<real> kernel_;
  const bool reward_gradient_;
  const int64_t padded_depth_, padded_columns_;
  const int64_t images_;  // at a time, so that memory doesn't grow with their number
  std::vector<real> column_pull_, column_pulled_;
  std::vector<double> theta_parts_;  // of each block
};

template <typename real>
Gradients match_backward_typed(const at::Tensor& desc1, const at::Tensor& desc2, const at::Tensor& inverse_temperature,
                               const std::optional<at::Tensor>& valid1, const std::optional<at::Tensor>& valid2,
                               const at::Tensor& logsumexp1, const at::Tensor& logsumexp2, const RewardArguments& rule,
                               const WeightArguments& weights, const at::Tensor& sum1, const at::Tensor& sum2,
                               bool reward_gradient) {
  const BackwardKernel<real> kernel = choose_kernel<real>();
  const Chunks chunks(desc1.size(1), kBackwardRows, kBackwardChunks);
  const Pairs<real> pairs(desc1, desc2, valid1, valid2, kernel.rows, kernel.columns, chunks);
  const AllTerms<real> terms(inverse_temperature, logsumexp1, logsumexp2, rule, weights, sum1, sum2, pairs);
  MatchBackward<real> backward(pairs, terms, kernel, desc1.options(), reward_gradient);
  backward.run();
  return {backward.grad1, backward.grad2, backward.grad_theta, backward.grad_reward};
}

Gradients match_backward(const at::Tensor& desc1,                       // [B, N, D]
                         const at::Tensor& desc2,                       // [B, M, D]
                         const at::Tensor& inverse_temperature,         // []
                         const std::optional<at::Tensor>& valid1,       // [B, N] bool
                         const std::optional<at::Tensor>& valid2,       // [B, M] bool
                         const at::Tensor& logsumexp1,                  // [B, N]
                         const at::Tensor& logsumexp2,                  // [B, M]
                         const std::optional<at::Tensor>& reward,       // [B, N, M]
                         const std::optional<at::Tensor>& keypoints1,   // [B, N, 2]
                         const std::optional<at::Tensor>& keypoints2,   // [B, M, 2]
                         const std::optional<at::Tensor>& warped1,      // [B, N, 2]
                         const std::optional<at::Tensor>& warped2,      // [B, M, 2]
                         const std::optional<at::Tensor>& fundamental,  // [B, 3, 3]
                         double epsilon, double lambda_tp, double lambda_fp, bool official,
                         const std::optional<at::Tensor>& weight1,  // [B, N]
                         const std::optional<at::Tensor>& weight2,  // [B, M]
                         const std::optional<at::Tensor>& weight0,  // [B, N]
                         const at::Tensor& sum1,                    // [B, N]
                         const at::Tensor& sum2,                    // [B, M]
                         bool reward_gradient) {
  const RewardArguments rule{reward,      keypoints1, keypoints2, warped1,   warped2,
                             fundamental, epsilon,    lambda_tp,  lambda_fp, official};
  const WeightArguments weights{weight1, weight2, weight0};
  check_match_backward(desc1, desc2, inverse_temperature, valid1, valid2, logsumexp1, logsumexp2, rule, weights, sum1,
                       sum2);
  const auto typed = result_dtype(desc1) == at::kDouble ? match_backward_typed<double> : match_backward_typed<float>;
  auto [grad1, grad2, grad_theta, grad_reward] =
      typed(precise(desc1), precise(desc2), inverse_temperature, contiguous(valid1), contiguous(valid2), logsumexp1,
            logsumexp2, rule, weights, sum1, sum2, reward_gradient);
  return {grad1.to(desc1.scalar_type()), grad2.to(desc2.scalar_type()), grad_theta, grad_reward};
}

}  // namespace

TORCH_LIBRARY_IMPL(disk_ops, CPU, m) { m.impl("_match_backward", &match_backward); }

}  // namespace disk_ops
