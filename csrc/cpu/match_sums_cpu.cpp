// _match_sums on the CPU: weighted sums of match probabilities in one pass over blocks of distances.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "match_terms.h"

namespace disk_ops {
namespace {

constexpr int64_t kSumsRows = 192;  // of a block: a multiple of the rows of every tile
constexpr int64_t kSumsChunks = 16;

template <typename real>
struct SumsKernel {
  int64_t rows, columns;  // of a tile
  void (*block)(const RowBlock<real>&, const Columns<real>&, const MatchTerms<real>&, real*, real*, real*);
};

}  // namespace
}  // namespace disk_ops

#define DISK_KERNELS "match_sums_simd.h"
#include "instruction_sets.h"

namespace disk_ops {
namespace {

using Sums3 = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

template <typename real>
Sums3 match_sums_typed(const at::Tensor& desc1, const at::Tensor& desc2, const at::Tensor& inverse_temperature,
                       const std::optional<at::Tensor>& valid1, const std::optional<at::Tensor>& valid2,
                       const at::Tensor& logsumexp1, const at::Tensor& logsumexp2, const RewardArguments& rule,
                       const WeightArguments& weights) {
  const SumsKernel<real> kernel = choose_kernel<real>();
  const Chunks chunks(desc1.size(1), kSumsRows, kSumsChunks);
  const Pairs<real> pairs(desc1, desc2, valid1, valid2, kernel.rows, kernel.columns, chunks);
  const AllTerms<real> terms(inverse_temperature, logsumexp1, logsumexp2, rule, weights, {}, {}, pairs);
  auto sum1 = at::zeros({pairs.batch, pairs.rows}, desc1.options());
  auto sum2 = at::zeros({pairs.batch, pairs.columns}, desc1.options());
  auto probability1 = at::zeros({pairs.batch, pairs.rows}, desc1.options());
  real* of_rows = sum1.template mutable_data_ptr<real>();
  real* of_columns = sum2.template mutable_data_ptr<real>();
  real* probabilities = probability1.template mutable_data_ptr<real>();

  std::vector<real> partial(pairs.batch * chunks.count * pairs.padded_columns);
  pairs.for_each_block([&](int64_t image, int64_t chunk, const RowBlock<real>& rows) {
    const int64_t first = image * pairs.rows + rows.first;
    kernel.block(rows, pairs.columns_of(image), terms.of(image), of_rows + first, probabilities + first,
                 partial.data() + (image * chunks.count + chunk) * pairs.padded_columns);
  });
  at::parallel_for(0, pairs.batch * pairs.columns, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i / pairs.columns * chunks.count * pairs.padded_columns + i % pairs.columns;
      for (int64_t c = 0; c < chunks.count; ++c) of_columns[i] += partial[first + c * pairs.padded_columns];
    }
  });
  return {sum1, sum2, probability1};
}

Sums3 match_sums(const at::Tensor& desc1,                       // [B, N, D]
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
                 const std::optional<at::Tensor>& weight1,    // [B, N]
                 const std::optional<at::Tensor>& weight2,    // [B, M]
                 const std::optional<at::Tensor>& weight0) {  // [B, N]
  const RewardArguments rule{reward,      keypoints1, keypoints2, warped1,   warped2,
                             fundamental, epsilon,    lambda_tp,  lambda_fp, official};
  const WeightArguments weights{weight1, weight2, weight0};
  check_match_sums(desc1, desc2, inverse_temperature, valid1, valid2, logsumexp1, logsumexp2, rule, weights, true);
  const auto typed =
      result_dtype(desc1) == at::kDouble ? match_sums_typed<double> : match_sums_typed<float>;
  return typed(precise(desc1), precise(desc2), inverse_temperature, contiguous(valid1), contiguous(valid2), logsumexp1,
               logsumexp2, rule, weights);
}

}  // namespace

TORCH_LIBRARY_IMPL(disk_ops, CPU, m) { m.impl("_match_sums", &match_sums); }

}  // namespace disk_ops
