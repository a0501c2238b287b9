"""Points and frames in images: pixels in xy order, integer at pixel centres."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops.ops._arguments import check_tensor
from disk_ops.ops._dtypes import at_least_float32


def check_points(
    keypoints: Tensor,  # [B, N, 2] xy
    batch: int,
    frames: bool = False,
    name: str = "keypoints",
) -> None:
    """Raise for what is no batch of points, or with ``frames`` of local affine frames ``[B, N, 2, 3]`` either."""
    check_tensor(name, keypoints)
    points = laf_centres(keypoints) if frames else keypoints
    if points.ndim != 3 or points.shape[-1] != 2 or points.shape[0] != batch:
        wanted = "[B, N, 2] or [B, N, 2, 3]" if frames else "[B, N, 2]"
        raise ValueError(f"{name} must have shape {wanted} with B = {batch}, got {list(keypoints.shape)}")
    if keypoints.is_complex() or keypoints.dtype == torch.bool:
        raise TypeError(f"{name} must be integers or floating point, got {keypoints.dtype}")


def lafs_from_keypoints(
    keypoints: Tensor,  # [B, N, 2]
    valid: Tensor,  # [B, N] bool
    scales: Tensor | None = None,  # [B, N]; None: 1
) -> Tensor:
    """Return kornia's local affine frames ``[B, N, 2, 3]``, upright; all zero where not valid."""
    centres = keypoints if keypoints.is_floating_point() else keypoints.float()
    frames = torch.eye(2, dtype=centres.dtype, device=centres.device).expand(*centres.shape[:2], 2, 2)
    if scales is not None:
        frames = frames * scales[..., None, None]
    return torch.cat([frames, centres[..., None]], dim=-1) * valid[..., None, None]


def laf_centres(
    keypoints: Tensor,  # [B, N, 2] or LAFs [B, N, 2, 3]
) -> Tensor:
    """Return points as they are, and of local affine frames the centres ``[B, N, 2]``."""
    return keypoints[..., 2] if keypoints.ndim == 4 and keypoints.shape[-2:] == (2, 3) else keypoints


def sample_descriptors(
    dense: Tensor,  # [B, D, H, W]
    keypoints: Tensor,  # [B, N, 2] xy
) -> Tensor:
    """Read L2-normalised descriptors ``[B, N, D]`` at points of a dense map.

    Integer points are read exactly, others interpolated bilinearly before the normalisation; points outside get the
    nearest pixel's descriptor, NaN gives NaN. Normalisation is in float32 at least, the result in the map's dtype.
    """
    if not keypoints.is_floating_point():
        height, width = dense.shape[-2:]
        x, y = keypoints.long().unbind(-1)
        sampled = _gather(dense, x.clamp(0, width - 1), y.clamp(0, height - 1))
    else:
        sampled = _interpolate(dense, keypoints)
    precision = at_least_float32(dense.dtype)
    return F.normalize(sampled.to(precision), dim=-1).to(dense.dtype)


def _interpolate(
    dense: Tensor,  # [B, D, H, W]
    keypoints: Tensor,  # [B, N, 2]
) -> Tensor:
    height, width = dense.shape[-2:]
    precision = at_least_float32(dense.dtype)
    x = keypoints[..., 0].to(precision).clamp(0, width - 1)
    y = keypoints[..., 1].to(precision).clamp(0, height - 1)
    left, top = x.nan_to_num(0).floor(), y.nan_to_num(0).floor()
    along, down = (x - left)[..., None], (y - top)[..., None]
    sampled: Tensor | float = 0.0
    for dx, weight_x in ((0, 1 - along), (1, along)):
        for dy, weight_y in ((0, 1 - down), (1, down)):
            # The neighbour of an integer point may lie outside; it has weight 0.
            column, row = (left + dx).clamp(max=width - 1), (top + dy).clamp(max=height - 1)
            sampled = sampled + _gather(dense, column.long(), row.long()) * (weight_x * weight_y)
    assert isinstance(sampled, Tensor)
    return sampled


def _gather(
    dense: Tensor,  # [B, D, H, W]
    x: Tensor,  # [B, N] int64
    y: Tensor,  # [B, N] int64
) -> Tensor:
    image = torch.arange(dense.shape[0], device=dense.device)[:, None]
    return dense.permute(0, 2, 3, 1)[image, y, x]  # [B, N, D]
