"""Positions of keypoints between pixels, from the scores around them."""

from __future__ import annotations

import torch
from torch import Tensor

from disk_ops.geometry import check_points
from disk_ops.ops._arguments import check_tensor
from disk_ops.ops._dtypes import at_least_float32

_FARTHEST = 0.5  # pixels; beyond that another pixel would be the maximum


def refine_keypoints(
    heatmap: Tensor,  # [B, 1, H, W]
    keypoints: Tensor,  # [B, N, 2] xy
    mask: Tensor | None = None,  # [B, 1, H, W] bool
) -> Tensor:  # [B, N, 2] xy
    r"""Move keypoints to the peak of the quadratic through the scores around them.

    With gradient :math:`g` and Hessian :math:`H` of the scores by central differences at a local maximum :math:`x`,

    .. math:: x' = x - H^{-1} g

    by at most half a pixel in x and in y. A keypoint stays where it is if the quadratic has no peak, if a score is not
    finite, or if it is no pixel whose score counts: between pixels, outside the image or the mask, NaN. A neighbour
    outside the image or the mask counts as equal to the one opposite, so that nothing moves across an edge.

    Args:
        heatmap: scores (logits), shape :math:`(B, 1, H, W)`.
        keypoints: pixels in xy order, shape :math:`(B, N, 2)`, integers or floating point.
        mask: pixels whose scores count, shape :math:`(B, 1, H, W)`; ``None``: all.

    Returns:
        Positions in pixels, shape :math:`(B, N, 2)`, float32 or the heatmap's float64. Gradients reach the heatmap.

    Raises:
        ValueError, TypeError: an argument has a wrong shape, dtype or device; the message names it.

    Example:
        >>> y, x = torch.meshgrid(torch.arange(5.0), torch.arange(5.0), indexing="ij")
        >>> heatmap = -((x - 2.25) ** 2) - (y - 1.75) ** 2
        >>> refine_keypoints(heatmap[None, None], torch.tensor([[[2, 2]]])).tolist()
        [[[2.25, 1.75]]]
    """
    _check(heatmap, keypoints, mask)
    pixels = keypoints.long()
    scores, present = _around(heatmap, pixels, mask)
    is_pixel = present[..., 1, 1] & (keypoints == pixels).all(-1)
    centre = scores[..., 1, 1]
    gx, hxx = _slopes(scores[..., 1, :], present[..., 1, :])
    gy, hyy = _slopes(scores[..., :, 1], present[..., :, 1])
    corners = scores[..., 0, 0] + scores[..., 2, 2] - scores[..., 0, 2] - scores[..., 2, 0]
    all_corners = present[..., ::2, ::2].flatten(-2).all(-1)
    hxy = torch.where(all_corners, corners / 4, torch.zeros_like(centre))
    determinant = hxx * hyy - hxy * hxy
    peak = is_pixel & (determinant > 0) & (hxx < 0) & torch.isfinite(determinant)
    # The inner where() keeps 0 / 0 out of the gradient.
    shift = torch.stack([hxy * gy - hyy * gx, hxy * gx - hxx * gy], -1) / torch.where(peak, determinant, 1)[..., None]
    shift = torch.where(peak[..., None] & torch.isfinite(shift), shift, 0)
    return keypoints.to(shift.dtype) + shift.clamp(-_FARTHEST, _FARTHEST)


def _around(
    heatmap: Tensor,  # [B, 1, H, W]
    keypoints: Tensor,  # [B, N, 2] int64
    mask: Tensor | None,  # [B, 1, H, W] bool
) -> tuple[Tensor, Tensor]:
    """Scores ``[B, N, 3, 3]`` around keypoints, and which of them there are."""
    height, width = heatmap.shape[-2:]
    steps = torch.arange(-1, 2, device=heatmap.device)
    x, y = keypoints[..., 0, None] + steps, keypoints[..., 1, None] + steps  # [B, N, 3]
    inside_x, inside_y = (x >= 0) & (x < width), (y >= 0) & (y < height)
    present = inside_y[..., :, None] & inside_x[..., None, :]
    pixels = y.clamp(0, height - 1)[..., :, None] * width + x.clamp(0, width - 1)[..., None, :]  # [B, N, 3, 3]
    flat = pixels.flatten(1)
    values = heatmap.flatten(1).gather(1, flat).view(pixels.shape)
    if mask is not None:
        present = present & mask.flatten(1).gather(1, flat).view(pixels.shape)
    return values.to(at_least_float32(heatmap.dtype)), present


def _slopes(
    scores: Tensor,  # [B, N, 3]
    present: Tensor,  # [B, N, 3] bool
) -> tuple[Tensor, Tensor]:
    """First and second derivatives along a line."""
    before, centre, after = scores.unbind(-1)
    has_before, _, has_after = present.unbind(-1)
    before, after = (
        torch.where(has_before, before, torch.where(has_after, after, centre)),
        torch.where(has_after, after, torch.where(has_before, before, centre)),
    )
    return (after - before) / 2, before - 2 * centre + after


def _check(heatmap: Tensor, keypoints: Tensor, mask: Tensor | None) -> None:
    check_tensor("heatmap", heatmap)
    if heatmap.ndim != 4 or heatmap.shape[1] != 1 or not heatmap.is_floating_point():
        raise ValueError(f"heatmap must be floating point [B, 1, H, W], got {heatmap.dtype} {list(heatmap.shape)}")
    check_points(keypoints, len(heatmap))
    if mask is not None:
        check_tensor("mask", mask)
    for name, tensor in (("keypoints", keypoints), ("mask", mask)):
        if tensor is not None and tensor.device != heatmap.device:
            raise ValueError(f"{name} must be on the device of heatmap ({heatmap.device}), got {tensor.device}")
    if mask is not None and (mask.shape != heatmap.shape or mask.dtype != torch.bool):
        raise ValueError(f"mask must be bool {list(heatmap.shape)}, got {mask.dtype} {list(mask.shape)}")
