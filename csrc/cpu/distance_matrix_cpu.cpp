// distance_matrix on the CPU: packed, register-tiled products, and differences where products lose digits.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "../match_arguments.h"
#include "match_pairs.h"

namespace disk_ops {
namespace {

constexpr int64_t kMatrixRows = 96;  // of a block: a multiple of the rows of every tile

template <typename real>
struct MatrixKernel {
  int64_t rows, columns;  // of a tile
  void (*write)(const RowBlock<real>&, const Columns<real>&, real*);
};

}  // namespace
}  // namespace disk_ops

#define DISK_KERNELS "distance_matrix_simd.h"
#include "instruction_sets.h"

namespace disk_ops {
namespace {

template <typename real>
at::Tensor distance_matrix_typed(const at::Tensor& desc1,    // [B, N, D] contiguous
                                 const at::Tensor& desc2) {  // [B, M, D] contiguous
  const MatrixKernel<real> kernel = choose_kernel<real>();
  auto distances = at::empty({desc1.size(0), desc1.size(1), desc2.size(1)}, desc1.options());
  real* out = distances.template mutable_data_ptr<real>();
  const Chunks each_block(desc1.size(1), kMatrixRows, std::numeric_limits<int32_t>::max());
  const Pairs<real> pairs(desc1, desc2, std::nullopt, std::nullopt, kernel.rows, kernel.columns, each_block);
  pairs.for_each_block([&](int64_t image, int64_t, const RowBlock<real>& rows) {
    kernel.write(rows, pairs.columns_of(image), out + (image * pairs.rows + rows.first) * pairs.columns);
  });
  return distances;
}

at::Tensor distance_matrix(const at::Tensor& desc1,    // [B, N, D]
                           const at::Tensor& desc2) {  // [B, M, D]
  check_descriptors(desc1, desc2);
  return desc1.scalar_type() == at::kDouble ? distance_matrix_typed<double>(precise(desc1), precise(desc2))
                                            : distance_matrix_typed<float>(precise(desc1), precise(desc2));
}

}  // namespace

TORCH_LIBRARY_IMPL(disk_ops, CPU, m) { m.impl("distance_matrix", &distance_matrix); }

}  // namespace disk_ops
