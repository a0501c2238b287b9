"""The twins of the block ops; see :mod:`disk_ops.reference`, which has them too.

On the CPU half tensors are computed in float32 and rounded once, as the kernels do.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from disk_ops.reference_describe import keypoints_inside

EPSILON = 1e-5  # of the instance norm
_HALF_TYPES = (torch.float16, torch.bfloat16)


def convolution(
    activation: Tensor,  # [B, C, H, W]
    weight: Tensor,  # [K, C, k, k]
    bias: Tensor,  # [K]
) -> Tensor:  # [B, K, H, W]
    """``padding="same"``, whatever autocast says. To one output, which is a score, the result is float32 at least.

    Half tensors on the CPU are convolved in float32 and rounded once: processors without instructions for them take
    hundreds of times as long to convolve them as they are.
    """
    channels = activation.shape[1]
    if weight.ndim != 4 or weight.shape[1] != channels or not len(weight):
        raise ValueError(f"weight must have shape [K, {channels}, k, k], got {list(weight.shape)}")
    _check_beside("weight", weight, activation, list(weight.shape))
    _check_beside("bias", bias, activation, [len(weight)])
    device, dtype, is_score = activation.device.type, activation.dtype, len(weight) == 1
    with torch.autocast(device, enabled=False) if device in ("cpu", "cuda") else nullcontext():
        if dtype in _HALF_TYPES and (is_score or device == "cpu"):
            output = F.conv2d(activation.float(), weight.float(), bias.float(), padding="same")
            return output if is_score else output.to(dtype)
        return F.conv2d(activation, weight, bias, padding="same")


def block_norm(
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None,  # [B, C2, H, W]
    resample: str,
) -> Tensor:  # [2, B, C1 + C2]
    """Mean and 1 / standard deviation of each channel; see :func:`disk_ops.ops.block_norm`."""
    joined = _joined(x, skip, resample)
    joined = joined.to(torch.promote_types(joined.dtype, torch.float32))
    variance, mean = torch.var_mean(joined, (2, 3), correction=0)
    return torch.stack([mean, torch.rsqrt(variance + EPSILON)])


def block_convolution(
    x: Tensor,  # [B, C1, h, w]
    weight: Tensor,  # [K, C1 + C2, k, k]
    bias: Tensor,  # [K]
    skip: Tensor | None,  # [B, C2, H, W]
    norm: Tensor | None,  # [2, B, C1 + C2]
    slope: Tensor | None,  # [C1 + C2]
    resample: str,
) -> Tensor:  # [B, K, H, W]
    """The convolution of a block; see :func:`disk_ops.ops.block_convolution`."""
    value = _gated(_normalized(_joined(x, skip, resample), norm), slope)
    output = convolution(value, weight.to(value.dtype), bias.to(value.dtype))
    return output if len(weight) == 1 else output.to(x.dtype)


def block_patches(
    x: Tensor,  # [B, C1, h, w]
    keypoints: Tensor,  # [B, N, 2] int64 xy
    skip: Tensor | None,  # [B, C2, H, W]
    norm: Tensor | None,  # [2, B, C1 + C2]
    slope: Tensor | None,  # [C1 + C2]
    resample: str,
) -> Tensor:  # [B, N, C1 + C2, 5, 5]
    """What a 5x5 convolution reads at keypoints; see :func:`disk_ops.ops.block_patches`."""
    activation = block_activation(x, skip, norm, slope, resample)
    if keypoints.ndim != 3 or keypoints.shape[::2] != (len(x), 2):
        raise ValueError(f"keypoints must have shape [B, N, 2] with B = {len(x)}, got {list(keypoints.shape)}")
    if keypoints.dtype != torch.int64:
        raise TypeError(f"keypoints must be whole pixels of dtype int64, got {keypoints.dtype}")
    if keypoints.device != x.device:
        raise ValueError(f"keypoints must be on the device of x ({x.device}), got {keypoints.device}")
    keypoints = keypoints_inside(keypoints, *activation.shape[-2:])
    padded = F.pad(activation, (2, 2, 2, 2))
    window = torch.arange(5, device=x.device)
    row = keypoints[..., 1, None, None] + window[:, None]  # [B, N, 5, 1]
    column = keypoints[..., 0, None, None] + window  # [B, N, 1, 5]
    image = torch.arange(len(x), device=x.device)[:, None, None, None]
    return padded[image, :, row, column].movedim(-1, 2)


def block_activation(
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None,  # [B, C2, H, W]
    norm: Tensor | None,  # [2, B, C1 + C2]
    slope: Tensor | None,  # [C1 + C2]
    resample: str,
) -> Tensor:  # [B, C1 + C2, H, W]
    """What the convolution of a block reads."""
    return _gated(_normalized(_joined(x, skip, resample), norm), slope).to(x.dtype)


def _block_input_backward(
    grad: Tensor,  # [B, C1 + C2, H, W]
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None,  # [B, C2, H, W]
    norm: Tensor | None,  # [2, B, C1 + C2] of block_norm
    slope: Tensor | None,  # [C1 + C2]
    resample: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, skip and slope, through the norm's statistics too, from that of :func:`block_activation`."""
    value = _normalized(_joined(x, skip, resample), norm)
    grad_slope = grad.new_zeros(0)
    if slope is not None:
        grad_slope = torch.where(value > 0, 0, value * grad).sum((0, 2, 3))
        grad = torch.where(value > 0, grad, grad * slope[:, None, None])
    if norm is not None:
        along = (grad * value).mean((2, 3), keepdim=True)
        grad = (grad - grad.mean((2, 3), keepdim=True) - value * along) * norm[1, :, :, None, None]
    channels, (height, width) = x.shape[1], grad.shape[2:]
    grad_x, grad_skip = grad[:, :channels], grad.new_zeros(0) if skip is None else grad[:, channels:].clone()
    if resample == "pool":
        spread = F.interpolate(grad_x / 4, scale_factor=2, mode="nearest")
        grad_x = F.pad(spread, (0, x.shape[3] - 2 * width, 0, x.shape[2] - 2 * height))
    elif resample == "up":
        grad_x = torch.ops.aten.upsample_bilinear2d_backward(grad_x, [height, width], x.shape, False, 2.0, 2.0)
    return grad_x.clone(), grad_skip, grad_slope


def _block_weight_backward(
    grad: Tensor,  # [B, K, H, W]
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None,  # [B, C2, H, W]
    norm: Tensor | None,  # [2, B, C1 + C2]
    slope: Tensor | None,  # [C1 + C2]
    resample: str,
) -> Tensor:  # [K, C1 + C2, 5, 5]
    """The gradient of the weights of a 5x5 convolution of :func:`block_activation`."""
    activation = block_activation(x, skip, norm, slope, resample)
    size = (grad.shape[1], activation.shape[1], 5, 5)
    return conv2d_weight(activation, size, grad, padding=2)


def _check_input(
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None,  # [B, C2, H, W]
    resample: str,
) -> None:
    if resample not in ("none", "pool", "up"):
        raise ValueError(f"resample must be 'none', 'pool' or 'up', got {resample!r}")
    if x.ndim != 4:
        raise ValueError(f"x must have shape [B, C, H, W], got {list(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"x must be float16, bfloat16, float32 or float64, got {x.dtype}")
    size = [{"pool": side // 2, "up": 2 * side}.get(resample, side) for side in x.shape[2:]]
    if 0 in size:
        raise ValueError(f"x must leave at least one pixel, got {list(x.shape)} with resample {resample!r}")
    if skip is None:
        return
    if skip.ndim != 4 or skip.shape[0] != x.shape[0] or list(skip.shape[2:]) != size:
        raise ValueError(f"skip must have shape [{x.shape[0]}, C, {size[0]}, {size[1]}], got {list(skip.shape)}")
    _check_beside("skip", skip, x, list(skip.shape))


def _check_beside(name: str, tensor: Tensor, x: Tensor, shape: list[int]) -> None:
    if list(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {list(tensor.shape)}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, got {tensor.dtype}")
    if tensor.device != x.device:
        raise ValueError(f"{name} must be on the device of x ({x.device}), got {tensor.device}")


def _joined(
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None,  # [B, C2, H, W]
    resample: str,
) -> Tensor:  # [B, C1 + C2, H, W]
    _check_input(x, skip, resample)
    if x.dtype in _HALF_TYPES and x.device.type == "cpu":
        x, skip = x.float(), None if skip is None else skip.float()
    if resample == "pool":
        x = F.avg_pool2d(x, 2)
    elif resample == "up":
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    return x if skip is None else torch.cat([x, skip], 1)


def _normalized(
    joined: Tensor,  # [B, C, H, W]
    norm: Tensor | None,  # [2, B, C]
) -> Tensor:  # [B, C, H, W]
    if norm is None:
        return joined
    _check_beside("norm", norm, joined, [2, *joined.shape[:2]])
    mean, factor = norm[:, :, :, None, None]
    return ((joined - mean) * factor).to(joined.dtype)


def _gated(
    value: Tensor,  # [B, C, H, W]
    slope: Tensor | None,  # [C]
) -> Tensor:  # [B, C, H, W]
    if slope is None:
        return value
    _check_beside("slope", slope, value, [value.shape[1]])
    return F.prelu(value, slope.to(value.dtype))
