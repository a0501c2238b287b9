// describe and its gradient for CUDA tensors.
#include "../library.h"
#include "describe_launch.h"
#include "stream.h"

namespace disk_ops {
namespace {

at::Tensor describe(const at::Tensor& activation,   // [B, C, H, W]
                    const at::Tensor& weight,       // [D, C, k, k]
                    const at::Tensor& bias,         // [D]
                    const at::Tensor& keypoints) {  // [B, N, 2] int64 xy
  check_describe(activation, weight, bias, keypoints);
  const DeviceStream stream(activation);
  return describe_on_stream(activation, weight, bias, keypoints, kPatchNumbers, stream.get());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> describe_backward(const at::Tensor& grad,         // [B, N, D]
                                                                 const at::Tensor& activation,   // [B, C, H, W]
                                                                 const at::Tensor& weight,       // [D, C, k, k]
                                                                 const at::Tensor& bias,         // [D]
                                                                 const at::Tensor& keypoints) {  // [B, N, 2]
  check_describe(activation, weight, bias, keypoints);
  check_describe_grad(grad, activation, weight, keypoints);
  const DeviceStream stream(activation);
  return describe_backward_on_stream(grad, activation, weight, bias, keypoints, kPatchNumbers, stream.get());
}

}  // namespace

DISK_CUDA_KERNELS(m) {
  m.impl("describe", &describe);
  m.impl("_describe_backward", &describe_backward);
}

}  // namespace disk_ops
