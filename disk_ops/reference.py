"""Pure-PyTorch twins of the native ops: the oracle of the tests, the fallback of devices without native kernels.

Each function has the signature of its op in ``csrc/ops.cpp`` and gives the same results. They are written to be read:
they may use more memory and time than the native kernels, but never an N×M matrix or a copy per window pixel.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS_AT_A_TIME = 1024


def nms_topk(
    heatmap: Tensor,  # [B, 1, H, W]
    n: int | None,
    window_size: int,
    score_threshold: float | None,
    border: int,
    mask: Tensor | None,  # [B, 1, H, W] bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the ``n`` best local maxima; see :func:`disk_ops.ops.nms_topk`.

    Pixels are ranked once by (score descending, raster order). A pixel is a maximum exactly if its rank is the lowest
    of its window, which settles plateaus, and reading the maxima in rank order gives the best ones first.

    Returns:
        keypoints ``[B, n, 2]`` int64 xy, scores ``[B, n]``, valid ``[B, n]`` bool.
    """
    batch, _, height, width = heatmap.shape
    value = heatmap[:, 0].float() if heatmap.dtype in (torch.float16, torch.bfloat16) else heatmap[:, 0]
    value = value.masked_fill(value.isnan(), -math.inf)
    if mask is not None:
        value = value.masked_fill(~mask[:, 0], -math.inf)
    flat = value.flatten(1)  # [B, H*W]

    order = flat.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order)
    rank.scatter_(1, order, torch.arange(height * width, device=flat.device).expand_as(order))
    is_maximum = _window_minimum(rank.view(batch, height, width), window_size).flatten(1) == rank
    is_maximum &= flat > (-math.inf if score_threshold is None else score_threshold)
    is_maximum &= _inside_border(height, width, border, flat.device).flatten()

    kept = is_maximum.gather(1, order)  # [B, H*W], best first
    if n is None:
        n = int(kept.sum(1).max()) if batch and height * width else 0
    slot = kept.cumsum(1) - 1
    kept &= slot < n
    slot = torch.where(kept, slot, n)  # the spare last slot takes what is left out
    pixel = torch.zeros(batch, n + 1, dtype=torch.int64, device=flat.device).scatter_(1, slot, order)[:, :n]
    valid = torch.arange(n, device=flat.device) < kept.sum(1, keepdim=True)
    pixel = pixel.masked_fill(~valid, 0)
    if height * width:
        scores = heatmap.flatten(1).gather(1, pixel).masked_fill(~valid, 0)
    else:
        scores = heatmap.new_zeros(batch, n)
    keypoints = torch.stack([pixel % max(width, 1), pixel.div(max(width, 1), rounding_mode="floor")], dim=-1)
    return keypoints, scores, valid


def _window_minimum(
    rank: Tensor,  # [B, H, W] int64
    window_size: int,
) -> Tensor:
    """Lowest rank in each pixel's window: one pooling along x, one along y."""
    if rank.numel() == 0 or window_size == 1:
        return rank
    # Pooling wants floats; float64 holds every rank, and float32 those of devices without float64.
    exact = torch.float32 if rank.device.type == "mps" else torch.float64
    if exact == torch.float32 and rank[0].numel() > 2**24:
        return _window_minimum(rank.cpu(), window_size).to(rank.device)
    _, height, width = rank.shape
    radius = min(window_size // 2, max(height, width) - 1)
    window_size = 2 * radius + 1
    worst_first = -rank.to(exact)
    pooled = F.max_pool2d(worst_first, (1, window_size), 1, (0, radius))
    pooled = F.max_pool2d(pooled, (window_size, 1), 1, (radius, 0))
    return (-pooled).to(rank.dtype)


def _inside_border(height: int, width: int, border: int, device: torch.device) -> Tensor:
    x, y = torch.arange(width, device=device), torch.arange(height, device=device)
    inside_x, inside_y = (x >= border) & (x < width - border), (y >= border) & (y < height - border)
    return inside_y[:, None] & inside_x[None, :]


def nearest_neighbors(
    desc1: Tensor,  # [B, N, D]
    desc2: Tensor,  # [B, M, D]
    valid1: Tensor | None,  # [B, N] bool
    valid2: Tensor | None,  # [B, M] bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Best and second-best neighbours both ways; see :func:`disk_ops.ops.nearest_neighbors`.

    Returns:
        distances1 ``[B, N, 2]``, indices1 ``[B, N, 2]``, distances2 ``[B, M, 2]``, indices2 ``[B, M, 2]``.
    """
    if desc1.dtype in (torch.float16, torch.bfloat16):
        desc1, desc2 = desc1.float(), desc2.float()
    return (
        *_two_nearest(desc1, desc2, valid1, valid2),
        *_two_nearest(desc2, desc1, valid2, valid1),
    )


def _two_nearest(
    desc1: Tensor,  # [B, N, D]
    desc2: Tensor,  # [B, M, D]
    valid1: Tensor | None,  # [B, N] bool
    valid2: Tensor | None,  # [B, M] bool
) -> tuple[Tensor, Tensor]:
    batch, rows, _ = desc1.shape
    columns = desc2.shape[1]
    distances = desc1.new_full((batch, rows, 2), math.inf)
    indices = torch.full((batch, rows, 2), -1, dtype=torch.int64, device=desc1.device)
    found = min(columns, 2)
    if found == 0:
        return distances, indices
    for first in range(0, rows, _ROWS_AT_A_TIME):
        chunk = slice(first, first + _ROWS_AT_A_TIME)
        # Differences, not products: exact near zero, and equal descriptors tie exactly.
        distance = torch.cdist(desc1[:, chunk], desc2, compute_mode="donot_use_mm_for_euclid_dist")
        distance = distance.masked_fill(distance.isnan(), math.inf)
        if valid1 is not None:
            distance = distance.masked_fill(~valid1[:, chunk, None], math.inf)
        if valid2 is not None:
            distance = distance.masked_fill(~valid2[:, None, :], math.inf)
        nearest, index = distance.sort(dim=-1, stable=True)
        distances[:, chunk, :found] = nearest[..., :found]
        indices[:, chunk, :found] = index[..., :found]
    return distances, indices.masked_fill(distances.isinf(), -1)


# The twins of other ops. Here at the end, because this is where ops are looked up.
from disk_ops.reference_blocks import _block_input_backward as _block_input_backward  # noqa: E402
from disk_ops.reference_blocks import _block_weight_backward as _block_weight_backward  # noqa: E402
from disk_ops.reference_blocks import block_activation as block_activation  # noqa: E402
from disk_ops.reference_blocks import block_convolution as block_convolution  # noqa: E402
from disk_ops.reference_blocks import block_norm as block_norm  # noqa: E402
from disk_ops.reference_blocks import block_patches as block_patches  # noqa: E402
from disk_ops.reference_describe import _describe_backward as _describe_backward  # noqa: E402
from disk_ops.reference_describe import describe as describe  # noqa: E402
from disk_ops.reference_reward import _match_backward as _match_backward  # noqa: E402
from disk_ops.reference_reward import _match_sums as _match_sums  # noqa: E402
from disk_ops.reference_reward import distance_matrix as distance_matrix  # noqa: E402
from disk_ops.reference_reward import match_statistics as match_statistics  # noqa: E402
from disk_ops.reference_sampling import _sample_grid_backward as _sample_grid_backward  # noqa: E402
from disk_ops.reference_sampling import sample_grid as sample_grid  # noqa: E402
