"""What other DISK implementations do instead of :func:`disk_ops.ops.nms_topk`, so that results can be compared.

Behaviour, not code, is taken from the sources named; faults are reproduced on purpose.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def nms_topk_like_official(
    heatmap: Tensor,  # [B, 1, H, W]
    n: int | None,
    window_size: int,
    score_threshold: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Maxima as the released code (cvlab-epfl/disk, ``detector.py``) finds them: max-pool NMS, ``kthvalue`` top-k."""
    height, width = heatmap.shape[-2:]
    _, first = F.max_pool2d(heatmap, window_size, 1, window_size // 2, return_indices=True)
    own = torch.arange(height * width, device=heatmap.device).view(height, width)
    is_maximum = first == own
    if score_threshold is not None:
        is_maximum &= heatmap > score_threshold
    return _in_raster_order(heatmap, is_maximum, n, _above_kth_value)


def _above_kth_value(
    scores: Tensor,  # [K]
    n: int,
) -> Tensor:
    # Strictly above the (n+1)-th best, or above the worst where there are no more: one too few, ties lost.
    threshold = -torch.kthvalue(-scores, min(n + 1, scores.numel())).values
    return scores > threshold


def nms_topk_like_kornia(
    heatmap: Tensor,  # [B, 1, H, W]
    n: int | None,
    window_size: int,
    score_threshold: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Maxima as kornia 0.9 (``heatmap_to_keypoints``) finds them: strict, the whole window inside the image."""
    radius = window_size // 2
    height, width = heatmap.shape[-2:]
    is_maximum = torch.zeros_like(heatmap, dtype=torch.bool)
    if height > 2 * radius and width > 2 * radius:
        inside = heatmap[..., radius : height - radius, radius : width - radius]
        above_all = torch.ones_like(inside, dtype=torch.bool)
        for dy in range(window_size):
            for dx in range(window_size):
                if (dy, dx) != (radius, radius):
                    above_all &= inside > heatmap[..., dy : dy + inside.shape[-2], dx : dx + inside.shape[-1]]
        is_maximum[..., radius : height - radius, radius : width - radius] = above_all
    if score_threshold is not None:
        is_maximum &= heatmap > score_threshold
    return _in_raster_order(heatmap, is_maximum, n, _n_best_in_raster_order)


def _n_best_in_raster_order(
    scores: Tensor,  # [K]
    n: int,
) -> Tensor:
    kept = torch.zeros_like(scores, dtype=torch.bool)
    kept[scores.argsort(descending=True, stable=True)[:n]] = True
    return kept


def _in_raster_order(
    heatmap: Tensor,  # [B, 1, H, W]
    is_maximum: Tensor,  # [B, 1, H, W] bool
    n: int | None,
    select: Callable[[Tensor, int], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    keypoints, scores = [], []
    for image, maxima in zip(heatmap[:, 0], is_maximum[:, 0], strict=True):
        xy, score = maxima.nonzero().flip(1), image[maxima]
        if n is not None:
            kept = select(score, n)
            xy, score = xy[kept], score[kept]
        keypoints.append(xy)
        scores.append(score)
    columns = n if n is not None else max((len(s) for s in scores), default=0)
    counts = torch.tensor([len(s) for s in scores], device=heatmap.device)
    valid = torch.arange(columns, device=heatmap.device) < counts[:, None]
    if not keypoints:
        return heatmap.new_zeros((0, columns, 2), dtype=torch.int64), heatmap.new_zeros((0, columns)), valid
    return (
        F.pad(pad_sequence(keypoints, batch_first=True), (0, 0, 0, columns))[:, :columns],
        F.pad(pad_sequence(scores, batch_first=True), (0, columns))[:, :columns],
        valid,
    )
