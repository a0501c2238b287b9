"""Keypoints of a batch of heatmaps: local maxima, or proposals of the training policy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from disk_ops.ops import GridSamples, LocalMaxima, nms_topk, sample_grid
from disk_ops.ops._dtypes import at_least_float32
from disk_ops.ops.nms import check_maxima
from disk_ops.subpixel import refine_keypoints


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
    check_maxima(n, window_size, score_threshold, border)
    if border is None:
        border = window_size // 2
    if image_size is None:
        return nms_topk(heatmap, n, window_size, score_threshold, border, keep)
    # The border runs along each image's own edges. Maxima at the right and bottom are found, so that they suppress
    # others, and then dropped.
    assert keep is not None
    found = nms_topk(
        heatmap, _with_dropped(n, heatmap, window_size, border), window_size, score_threshold, border, keep
    )
    inside = (found.keypoints < image_size.to(heatmap.device, non_blocking=True)[:, None] - border).all(-1)
    return _compact(found, found.valid & inside, n)


def _with_dropped(
    n: int | None,
    heatmap: Tensor,  # [B, 1, H, W]
    window_size: int,
    border: int,
) -> int | None:
    """How many maxima hold the ``n`` best that don't lie within a border at the right and bottom, wherever that runs.

    No maximum lies in another's window, so there are only so many in the border.
    """
    if n is None:
        return n
    apart = window_size // 2 + 1
    height, width = heatmap.shape[-2:]
    return n + -(-border // apart) * (-(-height // apart) + -(-width // apart))


def _compact(maxima: LocalMaxima, chosen: Tensor, n: int | None) -> LocalMaxima:  # chosen: [B, M] bool
    """The chosen entries only, in the same order, in ``n`` columns (``None``: as many as the richest image has)."""
    columns = n
    if columns is None:
        columns = int(chosen.sum(1).max()) if chosen.numel() else 0
    order = torch.sort((~chosen).to(torch.uint8), dim=1, stable=True).indices[:, :columns]
    valid = chosen.gather(1, order)
    return LocalMaxima(
        torch.where(valid[..., None], maxima.keypoints.gather(1, order[..., None].expand(-1, -1, 2)), 0),
        torch.where(valid, maxima.scores.gather(1, order), 0),
        valid,
    )


def positions(
    heatmap: Tensor,  # [B, 1, H, W]
    maxima: LocalMaxima,
    keep: Tensor | None,  # [B, 1, H, W] bool
    subpixel: bool,
) -> Tensor:  # [B, N, 2]
    """Return where the maxima are, as floating-point numbers: whole pixels, or refined."""
    if not subpixel:
        return maxima.keypoints.to(at_least_float32(heatmap.dtype))
    refined = refine_keypoints(heatmap, maxima.keypoints, keep)
    return torch.where(maxima.valid[..., None], refined, 0)


def draw_proposals(
    heatmap: Tensor,  # [B, 1, H, W]
    cell: int,
    generator: torch.Generator | Sequence[torch.Generator] | None,
    keep: Tensor | None,  # [B, 1, H, W] bool
) -> GridSamples:
    """Draw proposals as :func:`disk_ops.ops.sample_grid` does, with one generator for all images or one for each."""
    if generator is None or isinstance(generator, torch.Generator):
        return sample_grid(heatmap, cell, generator, keep)
    if not isinstance(generator, Sequence) or not all(isinstance(one, torch.Generator) for one in generator):
        got = type(generator).__name__
        raise TypeError(f"generator must be a torch.Generator, a sequence of them or None, got {got}")
    if len(generator) != len(heatmap):
        raise ValueError(f"generator must have one entry for each of the {len(heatmap)} images, got {len(generator)}")
    if not len(heatmap):
        return sample_grid(heatmap, cell, None, keep)
    each = [
        sample_grid(heatmap[i, None], cell, one, None if keep is None else keep[i, None])
        for i, one in enumerate(generator)
    ]
    return GridSamples(*map(torch.cat, zip(*each, strict=True)))
