#include "match_kernel.cuh"

namespace disk_ops {

DISK_INSTANTIATE_MATCH(Half)
DISK_INSTANTIATE_MATCH(BFloat16)
DISK_INSTANTIATE_MATCH(float)
DISK_INSTANTIATE_MATCH(double)

}  // namespace disk_ops
