// The kernels of the blocks. Included by instruction_sets.h once per instruction set: hence no include guard.
#include "elements_simd.h"
#include "block_input_simd.h"
#include "block_direct_simd.h"
#include "winograd_simd.h"
#include "block_winograd_simd.h"

template <typename T>
constexpr BlockKernel<T> kernel() {
  using Real = Tile<float>;
  constexpr Resample kNone = Resample::kNone, kPool = Resample::kPool, kUp = Resample::kUp;
  return {Real::kLanes,
          Real::kRows,
          Real::kColumns,
          {&sum_rows<kNone, T>, &sum_rows<kPool, T>, &sum_rows<kUp, T>},
          {&convolve_tiles<kNone, T>, &convolve_tiles<kPool, T>, &convolve_tiles<kUp, T>},
          {&convolve_to_one<kNone, T>, &convolve_to_one<kPool, T>, &convolve_to_one<kUp, T>},
          {&read_rows<kNone, T>, &read_rows<kPool, T>, &read_rows<kUp, T>},
          {&read_patch<kNone, T>, &read_patch<kPool, T>, &read_patch<kUp, T>},
          &pack_weight,
          &convolve_rows<T>};
}
