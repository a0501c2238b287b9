#include "nms_topk_kernel.cuh"

namespace disk_ops {

DISK_INSTANTIATE_NMS_TOPK(Half)
DISK_INSTANTIATE_NMS_TOPK(BFloat16)
DISK_INSTANTIATE_NMS_TOPK(float)
DISK_INSTANTIATE_NMS_TOPK(double)

}  // namespace disk_ops
