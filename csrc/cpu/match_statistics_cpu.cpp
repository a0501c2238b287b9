// match_statistics on the CPU: log-sum-exps of rows and columns in one pass over blocks of distances.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "../match_arguments.h"
#include "match_pairs.h"

namespace disk_ops {
namespace {

constexpr int64_t kStatisticsRows = 192;  // of a block: a multiple of the rows of every tile
constexpr int64_t kStatisticsChunks = 16;

template <typename real>
struct StatisticsKernel {
  int64_t rows, columns;  // of a tile
  void (*block)(const RowBlock<real>&, const Columns<real>&, real, real*, real*, real*);
};

template <typename real>
real log_of_sum(real most, real sum) {
  return sum == 0 ? -std::numeric_limits<real>::infinity() : most + std::log(sum);
}

}  // namespace
}  // namespace disk_ops

#define DISK_KERNELS "match_statistics_simd.h"
#include "instruction_sets.h"

namespace disk_ops {
namespace {

template <typename real>
struct ColumnSums {  // of exponentials, by chunks
  std::vector<real> most, sum;

  explicit ColumnSums(int64_t size) : most(size, std::numeric_limits<real>::lowest()), sum(size, real(0)) {}

  real logsumexp(int64_t first, int64_t step, int64_t count) const {
    real largest = std::numeric_limits<real>::lowest(), total = 0;
    for (int64_t c = 0; c < count; ++c) largest = std::max(largest, most[first + c * step]);
    for (int64_t c = 0; c < count; ++c) total += sum[first + c * step] * std::exp(most[first + c * step] - largest);
    return log_of_sum(largest, total);
  }
};

template <typename real>
std::tuple<at::Tensor, at::Tensor> match_statistics_typed(const at::Tensor& desc1,  // [B, N, D] contiguous
                                                          const at::Tensor& desc2,  // [B, M, D] contiguous
                                                          real inverse_temperature,
                                                          const std::optional<at::Tensor>& valid1,    // [B, N]
                                                          const std::optional<at::Tensor>& valid2) {  // [B, M]
  const StatisticsKernel<real> kernel = choose_kernel<real>();
  const Chunks chunks(desc1.size(1), kStatisticsRows, kStatisticsChunks);
  const Pairs<real> pairs(desc1, desc2, valid1, valid2, kernel.rows, kernel.columns, chunks);
  const real nothing = -std::numeric_limits<real>::infinity();
  auto logsumexp1 = at::full({pairs.batch, pairs.rows}, nothing, desc1.options());
  auto logsumexp2 = at::full({pairs.batch, pairs.columns}, nothing, desc1.options());
  real* of_rows = logsumexp1.template mutable_data_ptr<real>();
  real* of_columns = logsumexp2.template mutable_data_ptr<real>();

  ColumnSums<real> sums(pairs.batch * chunks.count * pairs.padded_columns);
  pairs.for_each_block([&](int64_t image, int64_t chunk, const RowBlock<real>& rows) {
    const int64_t offset = (image * chunks.count + chunk) * pairs.padded_columns;
    kernel.block(rows, pairs.columns_of(image), inverse_temperature, of_rows + image * pairs.rows + rows.first,
                 sums.most.data() + offset, sums.sum.data() + offset);
  });
  at::parallel_for(0, pairs.batch * pairs.columns, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i / pairs.columns * chunks.count * pairs.padded_columns + i % pairs.columns;
      of_columns[i] = sums.logsumexp(first, pairs.padded_columns, chunks.count);
    }
  });
  return {logsumexp1, logsumexp2};
}

std::tuple<at::Tensor, at::Tensor> match_statistics(const at::Tensor& desc1,                    // [B, N, D]
                                                    const at::Tensor& desc2,                    // [B, M, D]
                                                    const at::Tensor& inverse_temperature,      // []
                                                    const std::optional<at::Tensor>& valid1,    // [B, N] bool
                                                    const std::optional<at::Tensor>& valid2) {  // [B, M] bool
  check_match_statistics(desc1, desc2, inverse_temperature, valid1, valid2);
  const auto a = precise(desc1), b = precise(desc2);
  const auto keep1 = contiguous(valid1), keep2 = contiguous(valid2);
  if (a.scalar_type() == at::kDouble)
    return match_statistics_typed<double>(a, b, *inverse_temperature.const_data_ptr<double>(), keep1, keep2);
  return match_statistics_typed<float>(a, b, *inverse_temperature.const_data_ptr<float>(), keep1, keep2);
}

}  // namespace

TORCH_LIBRARY_IMPL(disk_ops, CPU, m) { m.impl("match_statistics", &match_statistics); }

}  // namespace disk_ops
