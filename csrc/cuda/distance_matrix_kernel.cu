#include "distance_matrix_kernel.cuh"

namespace disk_ops {

DISK_INSTANTIATE_DISTANCE_MATRIX(Half)
DISK_INSTANTIATE_DISTANCE_MATRIX(BFloat16)
DISK_INSTANTIATE_DISTANCE_MATRIX(float)
DISK_INSTANTIATE_DISTANCE_MATRIX(double)

}  // namespace disk_ops
