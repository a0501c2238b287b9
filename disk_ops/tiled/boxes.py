"""Rectangles of pixels: parts of an image at one level of the network's pyramid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor


class Box(NamedTuple):
    """Rows [top, bottom) and columns [left, right)."""

    top: int
    left: int
    bottom: int
    right: int

    def grown(self, margin: int, size: tuple[int, int]) -> Box:
        """With a margin on all sides that ends where the image of ``size`` (height, width) does."""
        return Box(
            max(0, self.top - margin),
            max(0, self.left - margin),
            min(size[0], self.bottom + margin),
            min(size[1], self.right + margin),
        )

    def doubled(self) -> Box:
        """The same part of an image of twice the size."""
        return Box(*(2 * edge for edge in self))

    def halved(self) -> Box:
        """The part of an image of half the size that holds it all."""
        return Box(self.top // 2, self.left // 2, -(-self.bottom // 2), -(-self.right // 2))

    def joined(self, other: Box | None) -> Box:
        """The smallest box around both."""
        if other is None:
            return self
        return Box(
            min(self.top, other.top), min(self.left, other.left),
            max(self.bottom, other.bottom), max(self.right, other.right),
        )  # fmt: skip

    def crop(
        self,
        tensor: Tensor,  # [..., H, W]
        of: Box,
    ) -> Tensor:
        """This part of a tensor that holds ``of``."""
        top, left = self.top - of.top, self.left - of.left
        return tensor[..., top : top + self.bottom - self.top, left : left + self.right - self.left]


def tiles(size: tuple[int, int], side: int) -> Iterator[Box]:
    """Parts of an image of ``size`` (height, width), without overlap, row by row."""
    for top in range(0, size[0], side):
        for left in range(0, size[1], side):
            yield Box(top, left, min(size[0], top + side), min(size[1], left + side))


def strips(box: Box, rows: int) -> Iterator[Box]:
    """Parts of a box of so many rows, the last one perhaps of fewer."""
    for top in range(box.top, box.bottom, rows):
        yield box._replace(top=top, bottom=min(box.bottom, top + rows))
