"""The twins of the block ops; see :mod:`disk_ops.reference`, which has them too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from disk_ops.reference_describe import keypoints_inside

EPSILON = 1e-5  # of the instance norm


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
    return F.conv2d(block_activation(x, skip, norm, slope, resample), weight, bias, padding="same")


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
    value = _normalized(_joined(x, skip, resample), norm)
    return value if slope is None else F.prelu(value, slope)


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
