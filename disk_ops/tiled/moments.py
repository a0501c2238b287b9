"""Mean and variance of channels, gathered from parts of a tensor."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from disk_ops.ops import block_norm
from disk_ops.reference_blocks import EPSILON


class Moments:
    """Of each channel of one image; parts may come in any order and size."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | None = None  # [C] float64
        self.squares: Tensor | None = None  # [C] float64: sum of squared deviations from the mean

    def add(
        self,
        values: Tensor,  # [1, C, h, w]
        resample: Literal["none", "pool"] = "none",
    ) -> None:
        """Take a part into account, perhaps when it is pooled (Chan, Golub, LeVeque 1983)."""
        count = values.shape[2] * values.shape[3] // (4 if resample == "pool" else 1)
        mean, factor = block_norm(values, resample=resample)[:, 0].double()
        squares = (factor.pow(-2) - EPSILON) * count
        if self.mean is None or self.squares is None:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total, difference = self.count + count, mean - self.mean
        self.mean = self.mean + difference * (count / total)
        self.squares = self.squares + squares + difference.square() * (self.count * count / total)
        self.count = total

    def norm(self) -> Tensor:  # [2, 1, C] float64
        """Mean and 1 / standard deviation, as :func:`disk_ops.ops.block_norm` gives them."""
        assert self.mean is not None and self.squares is not None
        variance = (self.squares / self.count).clamp(min=0)
        return torch.stack([self.mean, torch.rsqrt(variance + EPSILON)])[:, None]
