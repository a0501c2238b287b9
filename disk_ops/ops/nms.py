"""Local maxima of a heatmap: non-maximum suppression and top-k in one op."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from disk_ops.ops._arguments import check_integer, check_number
from disk_ops.ops._compat import nms_topk_like_kornia, nms_topk_like_official
from disk_ops.ops._derivatives import refuse_tangents
from disk_ops.ops._heatmap import check_heatmap


class LocalMaxima(NamedTuple):
    """The result of :func:`nms_topk`, the same number of columns for every image of the batch."""

    keypoints: Tensor  # [B, n, 2] int64 xy; (0, 0) where not valid
    scores: Tensor  # [B, n] values of the heatmap; 0 where not valid
    valid: Tensor  # [B, n] bool


def nms_topk(
    heatmap: Tensor,  # [B, 1, H, W]
    n: int | None,
    window_size: int = 5,
    score_threshold: float | None = 0.0,
    border: int = 0,
    mask: Tensor | None = None,  # [B, 1, H, W] bool
    compat: Literal["official", "kornia"] | None = None,
) -> LocalMaxima:
    r"""Find the ``n`` best local maxima of each heatmap.

    A pixel is a maximum if its value is above ``score_threshold`` and no pixel of the ``window_size`` ×
    ``window_size`` window around it (clipped to the image) is higher, or equal and earlier in raster order. So a
    plateau keeps its first pixel, and no maximum lies in another's window. The best ``n`` come first: order is score,
    then raster. Exactly ``min(n, number of maxima)`` entries of each image are valid. NaN is never a maximum and hides
    none. The time doesn't grow with ``window_size`` beyond its logarithm, and the extra memory is a small multiple of
    the heatmap.

    The scores are differentiable in ``heatmap``; keypoints are not.

    Args:
        heatmap: scores of shape :math:`(B, 1, H, W)`, float16, bfloat16, float32 or float64.
        n: number of columns of the result, at least 1. All are allocated (21 bytes each in float32), even where
            there are fewer pixels. ``None``: as many as the richest image of the batch has (on CUDA this waits for the
            device).
        window_size: odd width of the suppression window in pixels.
        score_threshold: a maximum is strictly above it; ``None`` accepts all but -inf.
        border: pixels nearer than this to an edge of the image are never chosen, though they still suppress others.
        mask: bool of the shape of ``heatmap``. Pixels where it is False are never chosen and suppress nothing.
        compat: reproduce another implementation instead, faults included, to compare with it: ``"official"`` is the
            code released with the paper (plateaus keep one pixel; with ``n``, the weakest maximum and all ties at the
            threshold are lost; nothing to find with ``n`` given raises ``IndexError``), ``"kornia"`` is kornia 0.9
            (no plateaus, no maxima in the outer ``window_size // 2`` pixels). Maxima then come in raster order.

    Returns:
        :class:`LocalMaxima`: keypoints :math:`(B, n, 2)` int64 pixels in xy order, scores :math:`(B, n)` in the
        heatmap's dtype, valid :math:`(B, n)` bool.

    Raises:
        ValueError, TypeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> heatmap = torch.zeros(1, 1, 8, 8)
        >>> heatmap[0, 0, 2, 5] = 1.0
        >>> maxima = nms_topk(heatmap, n=2)
        >>> maxima.keypoints[maxima.valid].tolist()
        [[5, 2]]
    """
    check_heatmap(heatmap, mask)
    check_integer("border", border)
    check_maxima(n, window_size, score_threshold, border)
    score_threshold = None if score_threshold is None else float(score_threshold)
    if compat is not None:
        return LocalMaxima(*_compat(heatmap, n, window_size, score_threshold, border, mask, compat))
    refuse_tangents("nms_topk", heatmap)
    return LocalMaxima(*torch.ops.disk_ops.nms_topk(heatmap, n, window_size, score_threshold, border, mask))


def check_maxima(n: int | None, window_size: int, score_threshold: float | None, border: int | None = None) -> None:
    """Raise for arguments that :func:`nms_topk` doesn't know; ``border=None`` stands for a default elsewhere."""
    for name, value in (("n", n), ("window_size", window_size), ("border", border)):
        if value is not None or name == "window_size":
            check_integer(name, value)
    if score_threshold is not None:
        check_number("score_threshold", score_threshold)
    if n is not None and n <= 0:
        raise ValueError(f"n must be a positive integer or None, got {n}")
    if window_size <= 0 or window_size % 2 == 0:
        raise ValueError(f"window_size must be an odd positive integer, got {window_size}")
    if border is not None and border < 0:
        raise ValueError(f"border must be 0 or more pixels, got {border}")


def _compat(
    heatmap: Tensor,
    n: int | None,
    window_size: int,
    score_threshold: float | None,
    border: int,
    mask: Tensor | None,
    compat: str,
) -> tuple[Tensor, Tensor, Tensor]:
    if mask is not None or border != 0:
        raise ValueError(f"compat={compat!r} reproduces code that knows no mask and no border; leave them out")
    if compat == "official":
        return nms_topk_like_official(heatmap, n, window_size, score_threshold)
    if compat == "kornia":
        return nms_topk_like_kornia(heatmap, n, window_size, score_threshold)
    raise ValueError(f"compat must be 'official', 'kornia' or None, got {compat!r}")


def _fake(
    heatmap: Tensor,
    n: int | None,
    window_size: int,
    score_threshold: float | None,
    border: int,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    columns = torch.library.get_ctx().new_dynamic_size() if n is None else n
    batch = heatmap.shape[0]
    return (
        heatmap.new_empty((batch, columns, 2), dtype=torch.int64),
        heatmap.new_empty((batch, columns)),
        heatmap.new_empty((batch, columns), dtype=torch.bool),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    keypoints, _, valid = output
    ctx.save_for_backward(keypoints, valid)
    ctx.heatmap_shape = inputs[0].shape
    ctx.mark_non_differentiable(keypoints, valid)


def _backward(
    ctx: Any, _keypoints: Tensor, grad_scores: Tensor, _valid: Tensor
) -> tuple[Tensor | None, None, None, None, None, None]:
    if not ctx.needs_input_grad[0]:
        return None, None, None, None, None, None
    keypoints, valid = ctx.saved_tensors
    batch, _, height, width = ctx.heatmap_shape
    # Valid pixels are all different; the rest goes to a spare cell, so no two gradients meet and order can't matter.
    pixel = torch.where(valid, keypoints[..., 1] * width + keypoints[..., 0], height * width)
    grad = grad_scores.new_zeros(batch, height * width + 1).scatter(1, pixel, grad_scores)
    return grad[:, : height * width].reshape(batch, 1, height, width), None, None, None, None, None


torch.library.register_fake("disk_ops::nms_topk", _fake)
torch.library.register_autograd("disk_ops::nms_topk", _backward, setup_context=_setup_context)
