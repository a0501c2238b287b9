"""Keypoints of a batch of heatmaps: local maxima, or proposals of the training policy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops.ops import GridSamples, LocalMaxima, nms_topk, sample_grid


def find_maxima(
    heatmap: Tensor,  # [B, 1, H, W]
    n: int | None,
    window_size: int,
    score_threshold: float,
    keep: Tensor | None,  # [B, 1, H, W] bool
    border: int | None,
    image_size: Tensor | None = None,  # [B, 2] (width, height)
) -> LocalMaxima:
    """Return the best local maxima where ``keep`` is True, at a distance from the edges of each image.

    With ``image_size`` the edges are those of the images that a batch was padded from.
    Arguments are those of :func:`disk_ops.ops.nms_topk`; ``border=None`` is ``window_size // 2``.
    """
    if border is None:
        border = window_size // 2
    if image_size is None:
        return nms_topk(heatmap, n, window_size, score_threshold, border, keep)
    # The border runs along each image's own edges, so each is searched by itself.
    assert keep is not None
    if len(image_size) == 0:
        return nms_topk(heatmap, n, window_size, score_threshold, border)
    each = [
        nms_topk(heatmap[i, None, :, :h, :w], n, window_size, score_threshold, border, keep[i, None, :, :h, :w])
        for i, (w, h) in enumerate(image_size.tolist())
    ]
    columns = n if n is not None else max(maxima.scores.shape[1] for maxima in each)
    return LocalMaxima(
        torch.cat([F.pad(m.keypoints, (0, 0, 0, columns - m.keypoints.shape[1])) for m in each]),
        torch.cat([F.pad(m.scores, (0, columns - m.scores.shape[1])) for m in each]),
        torch.cat([F.pad(m.valid, (0, columns - m.valid.shape[1])) for m in each]),
    )


def draw_proposals(
    heatmap: Tensor,  # [B, 1, H, W]
    cell: int,
    generator: torch.Generator | Sequence[torch.Generator] | None,
    keep: Tensor | None,  # [B, 1, H, W] bool
) -> GridSamples:
    """Draw proposals as :func:`disk_ops.ops.sample_grid` does, with one generator for all images or one for each."""
    if generator is None or isinstance(generator, torch.Generator):
        return sample_grid(heatmap, cell, generator, keep)
    if len(generator) != len(heatmap):
        raise ValueError(f"generator must have one entry for each of the {len(heatmap)} images, got {len(generator)}")
    if not len(heatmap):
        return sample_grid(heatmap, cell, None, keep)
    each = [
        sample_grid(heatmap[i, None], cell, one, None if keep is None else keep[i, None])
        for i, one in enumerate(generator)
    ]
    return GridSamples(*map(torch.cat, zip(*each, strict=True)))
