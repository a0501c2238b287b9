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


def _joined(
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None,  # [B, C2, H, W]
    resample: str,
) -> Tensor:  # [B, C1 + C2, H, W]
    if resample not in ("none", "pool", "up"):
        raise ValueError(f"resample must be 'none', 'pool' or 'up', got {resample!r}")
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
    mean, factor = norm[:, :, :, None, None]
    return ((joined - mean) * factor).to(joined.dtype)


def _gated(
    value: Tensor,  # [B, C, H, W]
    slope: Tensor | None,  # [C]
) -> Tensor:  # [B, C, H, W]
    return value if slope is None else F.prelu(value, slope.to(value.dtype))
