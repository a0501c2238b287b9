#include "describe_kernel.cuh"

namespace disk_ops {

DISK_INSTANTIATE_DESCRIBE(Half)
DISK_INSTANTIATE_DESCRIBE(BFloat16)
DISK_INSTANTIATE_DESCRIBE(float)
DISK_INSTANTIATE_DESCRIBE(double)

}  // namespace disk_ops
