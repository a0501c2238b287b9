// Launcher of distance_matrix: raw pointers and sizes, no torch. distance_matrix_launch.h allocates and calls it.
#pragma once

#include "packed_descriptors.h"
#include "product_tiles.h"

namespace disk_ops {

template <typename T>
cudaError_t launch_distance_matrix(const T* desc1, const T* desc2,                   // [B, N, D], [B, M, D], contiguous
                                   const PackedDescriptors<computing<T>>& packed1,  // scratch
                                   const PackedDescriptors<computing<T>>& packed2,  // scratch
                                   int64_t batch, int depth,
                                   computing<T>* distances,  // [B, N, M]
                                   cudaStream_t stream);

}  // namespace disk_ops
