"""The twins of the block ops; see :mod:`disk_ops.reference`, which has them too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

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
    return F.conv2d(_activation(x, skip, norm, slope, resample), weight, bias, padding="same")


def block_patches(
    x: Tensor,  # [B, C1, h, w]
    keypoints: Tensor,  # [B, N, 2] int64 xy
    skip: Tensor | None,  # [B, C2, H, W]
    norm: Tensor | None,  # [2, B, C1 + C2]
    slope: Tensor | None,  # [C1 + C2]
    resample: str,
) -> Tensor:  # [B, N, C1 + C2, 5, 5]
    """What a 5x5 convolution reads at keypoints; see :func:`disk_ops.ops.block_patches`."""
    activation = _activation(x, skip, norm, slope, resample)
    keypoints = keypoints_inside(keypoints, *activation.shape[-2:])
    padded = F.pad(activation, (2, 2, 2, 2))
    window = torch.arange(5, device=x.device)
    row = keypoints[..., 1, None, None] + window[:, None]  # [B, N, 5, 1]
    column = keypoints[..., 0, None, None] + window  # [B, N, 1, 5]
    image = torch.arange(len(x), device=x.device)[:, None, None, None]
    return padded[image, :, row, column].movedim(-1, 2)


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


def _activation(
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None,  # [B, C2, H, W]
    norm: Tensor | None,  # [2, B, C1 + C2]
    slope: Tensor | None,  # [C1 + C2]
    resample: str,
) -> Tensor:  # [B, C1 + C2, H, W]
    joined = _joined(x, skip, resample)
    if norm is not None:
        mean, factor = norm[:, :, :, None, None]
        joined = ((joined - mean) * factor).to(joined.dtype)
    return joined if slope is None else F.prelu(joined, slope)
