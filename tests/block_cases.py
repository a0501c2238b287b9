"""Blocks of the network, and odd ones, for the tests of their ops."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops import reference_blocks


class Case(NamedTuple):
    """A block of the network, or one that is odd."""

    x: tuple[int, int, int, int]
    skip: int  # channels
    outputs: int
    resample: str


CASES = {
    "down": Case((2, 16, 64, 50), 0, 32, "pool"),
    "down, odd size": Case((1, 32, 9, 15), 0, 64, "pool"),
    "up": Case((2, 64, 17, 33), 32, 64, "up"),
    "up without a skip": Case((1, 16, 5, 6), 0, 16, "up"),
    "as it is": Case((1, 16, 9, 14), 16, 16, "none"),
    "to one": Case((2, 64, 35, 37), 16, 1, "up"),
    "to one, small": Case((1, 16, 3, 2), 0, 1, "none"),
    "a row": Case((1, 16, 1, 40), 16, 16, "up"),
    "a column": Case((1, 16, 70, 2), 0, 16, "pool"),
    "smaller than a tile": Case((3, 16, 2, 2), 0, 48, "none"),
}


class Inputs(NamedTuple):
    """Tensors of a case, in float64."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    skip: Tensor | None
    slope: Tensor
    resample: str

    def norm(self) -> Tensor:
        return reference_blocks.block_norm(self.x, self.skip, self.resample)

    def activation(self) -> Tensor:
        """The definition, by PyTorch's modules."""
        x = self.x
        if self.resample == "pool":
            x = torch.nn.AvgPool2d(2)(x)
        if self.resample == "up":
            x = torch.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)(x)
        x = x if self.skip is None else torch.cat([x, self.skip], 1)
        return F.prelu(F.instance_norm(x, eps=1e-5), self.slope)

    def rounding(self) -> float:
        """The error of rounding the largest of the convolution's sums of absolute values once, to float32.

        Direct convolutions in float32 are within 1.5 to 12 times that, by the order in which a processor's kernels add
        up; Winograd's F(4x4, 5x5) within 16 times.
        """
        sums = F.conv2d(self.activation().abs(), self.weight.abs(), self.bias.abs(), padding="same")
        return 2**-24 * float(sums.max())

    def to(self, dtype: torch.dtype) -> Inputs:
        return Inputs(*(entry.to(dtype) if isinstance(entry, Tensor) else entry for entry in self))

    def float(self) -> Inputs:
        return self.to(torch.float32)


def make_inputs(case: Case) -> Inputs:
    """Random tensors, the same at each call."""
    rng = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    batch, channels, height, width = case.x
    size = {"none": (height, width), "pool": (height // 2, width // 2), "up": (2 * height, 2 * width)}[case.resample]
    skip = normal(batch, case.skip, *size) * 3 - 1 if case.skip else None
    total = channels + case.skip
    weight = normal(case.outputs, total, 5, 5) / (25 * total) ** 0.5  # outputs of unit size
    # Means far from 0, as the raw outputs of convolutions have.
    return Inputs(normal(*case.x) + 5, weight, normal(case.outputs), skip, normal(total) / 4, case.resample)
