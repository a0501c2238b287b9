// The current stream of a tensor's device, made the current device for as long as this lives. From c10 alone:
// ATen/cuda/CUDAContext.h would need the headers of cuBLAS, cuSPARSE and cuSOLVER.
#pragma once

#include <ATen/core/Tensor.h>

#if defined(DISK_EMULATED)
#include "runtime.h"

namespace disk_ops {

class DeviceStream {
 public:
  explicit DeviceStream(const at::Tensor&) {}

  cudaStream_t get() const { return nullptr; }
};

}  // namespace disk_ops
#else
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace disk_ops {

class DeviceStream {
 public:
  explicit DeviceStream(const at::Tensor& tensor)
      : guard_(tensor.device()), stream_(c10::cuda::getCurrentCUDAStream(tensor.device().index())) {}

  cudaStream_t get() const { return stream_.stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace disk_ops
#endif
