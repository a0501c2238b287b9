#include "sample_grid_kernel.cuh"

namespace disk_ops {

DISK_INSTANTIATE_SAMPLE_GRID(Half)
DISK_INSTANTIATE_SAMPLE_GRID(BFloat16)
DISK_INSTANTIATE_SAMPLE_GRID(float)
DISK_INSTANTIATE_SAMPLE_GRID(double)

}  // namespace disk_ops
