// distance_matrix on tensors: allocation, launches. Shared by the CUDA glue and the emulated op of the tests.
#pragma once

#include "distance_matrix_kernel.h"
#include "packed_tensors.h"

namespace disk_ops {

// Arguments are checked, and the descriptors' device is current.
inline at::Tensor distance_matrix_on_stream(const at::Tensor& desc1,  // [B, N, D]
                                            const at::Tensor& desc2,  // [B, M, D]
                                            cudaStream_t stream) {
  check_tiles(desc1, desc2);
  const auto distances = at::empty({desc1.size(0), desc1.size(1), desc2.size(1)},
                                   desc1.options().dtype(result_dtype(desc1)));
  return with_element_type(desc1.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const PackedTensors<T> side1(desc1), side2(desc2);
    const cudaError_t error = launch_distance_matrix<T>(
        side1.elements(), side2.elements(), side1.pointers, side2.pointers, desc1.size(0),
        static_cast<int>(desc1.size(2)), distances.mutable_data_ptr<computing<T>>(), stream);
    TORCH_CHECK(error == cudaSuccess, "distance_matrix failed to launch: ", cudaGetErrorString(error));
    return distances;
  });
}

}  // namespace disk_ops
