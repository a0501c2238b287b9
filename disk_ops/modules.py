"""Ops as ``nn.Module``s, for pipelines built of modules."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from disk_ops.ops import GridSamples, LocalMaxima, distance_matrix, nms_topk, sample_grid
from disk_ops.ops._arguments import check_integer
from disk_ops.ops.nms import check_maxima
from disk_ops.ops.sampling import check_grid


class NMSTopK(nn.Module):
    """Find the ``n`` best local maxima of heatmaps; see :func:`disk_ops.ops.nms_topk` for arguments and results.

    Raises:
        ValueError, TypeError: an argument, here or in a call, is wrong; the message names it.

    Example:
        >>> import torch
        >>> NMSTopK(n=16)(torch.rand(2, 1, 32, 32)).keypoints.shape
        torch.Size([2, 16, 2])
    """

    def __init__(
        self, n: int | None = None, window_size: int = 5, score_threshold: float | None = 0.0, border: int = 0
    ) -> None:
        super().__init__()
        check_integer("border", border)
        check_maxima(n, window_size, score_threshold, border)
        self.n, self.window_size, self.score_threshold, self.border = n, window_size, score_threshold, border

    def forward(
        self,
        heatmap: Tensor,  # [B, 1, H, W]
        mask: Tensor | None = None,  # [B, 1, H, W] bool
    ) -> LocalMaxima:
        """Return keypoints, scores and which of them are valid."""
        return nms_topk(heatmap, self.n, self.window_size, self.score_threshold, self.border, mask)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return (
            f"n={self.n}, window_size={self.window_size}, score_threshold={self.score_threshold}, border={self.border}"
        )


class DistanceMatrix(nn.Module):
    """L2 distances between all pairs of descriptors; see :func:`disk_ops.ops.distance_matrix`.

    Raises:
        ValueError, TypeError: a call's argument has a wrong shape, dtype or device; the message names it.

    Example:
        >>> import torch
        >>> DistanceMatrix()(torch.rand(5, 8), torch.rand(6, 8)).shape
        torch.Size([5, 6])
    """

    def forward(
        self,
        desc1: Tensor,  # [N, D] or [B, N, D]
        desc2: Tensor,  # [M, D] or [B, M, D]
    ) -> Tensor:
        """Return distances ``[N, M]`` or ``[B, N, M]``."""
        return distance_matrix(desc1, desc2)


class GridSampler(nn.Module):
    """Draw at most one keypoint in each cell of heatmaps; see :func:`disk_ops.ops.sample_grid`.

    Raises:
        ValueError, TypeError: an argument, here or in a call, is wrong; the message names it.

    Example:
        >>> import torch
        >>> GridSampler(cell=8)(torch.randn(2, 1, 32, 30)).keypoints.shape
        torch.Size([2, 4, 4, 2])
    """

    def __init__(self, cell: int = 8, mode: Literal["sample", "argmax"] = "sample") -> None:
        super().__init__()
        check_grid(cell, mode)
        self.cell, self.mode = cell, mode

    def forward(
        self,
        heatmap: Tensor,  # [B, 1, H, W]
        mask: Tensor | None = None,  # [B, 1, H, W] bool
        generator: torch.Generator | None = None,
    ) -> GridSamples:
        """Return each cell's proposal, whether it is accepted, and the log-probability of that."""
        return sample_grid(heatmap, self.cell, generator, mask, self.mode)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"cell={self.cell}, mode={self.mode!r}"
