#include "blocks_kernel.cuh"

namespace disk_ops {

DISK_INSTANTIATE_BLOCKS(Half)
DISK_INSTANTIATE_BLOCKS(BFloat16)
DISK_INSTANTIATE_BLOCKS(float)

}  // namespace disk_ops
