// The kernels of the blocks. Included by instruction_sets.h once per instruction set: hence no include guard.
#include "block_input_simd.h"
#include "block_direct_simd.h"
#include "winograd_simd.h"
#include "block_winograd_simd.h"

template <typename real>
constexpr BlockKernel kernel() {
  using T = Tile<real>;
  return {T::kLanes,
          T::kRows,
          T::kColumns,
          {&sum_rows<Resample::kNone>, &sum_rows<Resample::kPool>, &sum_rows<Resample::kUp>},
          {&convolve_tiles<Resample::kNone>, &convolve_tiles<Resample::kPool>, &convolve_tiles<Resample::kUp>},
          {&convolve_to_one<Resample::kNone>, &convolve_to_one<Resample::kPool>, &convolve_to_one<Resample::kUp>},
          {&read_rows<Resample::kNone>, &read_rows<Resample::kPool>, &read_rows<Resample::kUp>},
          {&read_patch<Resample::kNone>, &read_patch<Resample::kPool>, &read_patch<Resample::kUp>},
          &pack_weight,
          &convolve_rows};
}
