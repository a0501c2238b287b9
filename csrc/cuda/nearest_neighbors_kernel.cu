#include "nearest_neighbors_kernel.cuh"

namespace disk_ops {

DISK_INSTANTIATE_NEAREST_NEIGHBORS(Half)
DISK_INSTANTIATE_NEAREST_NEIGHBORS(BFloat16)
DISK_INSTANTIATE_NEAREST_NEIGHBORS(float)
DISK_INSTANTIATE_NEAREST_NEIGHBORS(double)

}  // namespace disk_ops
