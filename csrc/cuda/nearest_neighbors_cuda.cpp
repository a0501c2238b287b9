// nearest_neighbors for CUDA tensors.
#include "../library.h"
#include "nearest_neighbors_launch.h"
#include "stream.h"

namespace disk_ops {
namespace {

NeighborsBothWays nearest_neighbors(const at::Tensor& desc1,                    // [B, N, D]
                                    const at::Tensor& desc2,                    // [B, M, D]
                                    const std::optional<at::Tensor>& valid1,    // [B, N] bool
                                    const std::optional<at::Tensor>& valid2) {  // [B, M] bool
  check_nearest_neighbors(desc1, desc2, valid1, valid2);
  const DeviceStream stream(desc1);
  return nearest_neighbors_on_stream(desc1, desc2, valid1, valid2, TileSize::kAutomatic, stream.get());
}

}  // namespace

DISK_CUDA_KERNELS(m) { m.impl("nearest_neighbors", &nearest_neighbors); }

}  // namespace disk_ops
