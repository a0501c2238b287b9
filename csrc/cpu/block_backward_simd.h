// The kernels of the blocks' gradients. Included by instruction_sets.h once per instruction set: hence no include
// guard.
#include "elements_simd.h"
#include "block_input_simd.h"
#include "winograd_simd.h"
#include "block_gradient_simd.h"
#include "block_weight_simd.h"

template <typename real>
constexpr BackwardKernel kernel() {
  using T = Tile<real>;
  return {T::kLanes,
          T::kRows,
          T::kColumns,
          {&sum_gradient<Resample::kNone>, &sum_gradient<Resample::kPool>, &sum_gradient<Resample::kUp>},
          {&gradient_of_input<Resample::kNone>, &gradient_of_input<Resample::kPool>, &gradient_of_input<Resample::kUp>},
          {&sum_tiles<Resample::kNone>, &sum_tiles<Resample::kPool>, &sum_tiles<Resample::kUp>},
          {&sum_taps<Resample::kNone>, &sum_taps<Resample::kPool>, &sum_taps<Resample::kUp>},
          &finish_weight};
}
