// distance_matrix for CUDA tensors.
#include "../library.h"
#include "distance_matrix_launch.h"
#include "stream.h"

namespace disk_ops {
namespace {

at::Tensor distance_matrix(const at::Tensor& desc1,    // [B, N, D]
                           const at::Tensor& desc2) {  // [B, M, D]
  check_descriptors(desc1, desc2);
  const DeviceStream stream(desc1);
  return distance_matrix_on_stream(desc1, desc2, stream.get());
}

}  // namespace

DISK_CUDA_KERNELS(m) { m.impl("distance_matrix", &distance_matrix); }

}  // namespace disk_ops
