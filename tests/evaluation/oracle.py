"""Methods whose features are known: for tests of what is measured rather than of features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np
import torch
from torch import Tensor

from disk_ops.evaluation.features import Features
from disk_ops.evaluation.methods import Method

STEP = 10  # of the grey values that tell images apart


def write_numbered(path, number: int, size: tuple[int, int]) -> None:
    """An image of one grey value, by which :func:`oracle` knows it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((size[1], size[0], 3), STEP * (number + 1), np.uint8))


def number_of(image: Tensor) -> int:
    """The number that an image was written with."""
    return round(image.mean().item() * 255 / STEP) - 1


def oracle(points_in: Callable[[int, tuple[int, int]], np.ndarray], name: str = "oracle") -> Method:
    """A method that finds points where they are, all in the same order, and describes each uniquely.

    Args:
        points_in: the points [N, 2] in the image of a number, in the size that it has.
        name: of the method.
    """

    def extract(image: Tensor, n: int) -> Features:
        points = points_in(number_of(image), (image.shape[2], image.shape[1]))[:n]
        return Features(torch.from_numpy(points).float(), torch.eye(len(points)), torch.ones(len(points)))

    return Method(name, name, extract)


def constant(name: str, features: Sequence[Features]) -> Method:
    """A method that returns these features, one after the other, whatever the image."""
    remaining = iter(features)
    return Method(name, name, lambda image, n: next(remaining))


def blind(count: int = 300, name: str = "blind") -> Method:
    """A method that finds random points with random descriptors."""
    rng = np.random.default_rng(5)

    def extract(image: Tensor, n: int) -> Features:
        points = rng.uniform(0, 1, (count, 2)) * (image.shape[2] - 1, image.shape[1] - 1)
        return Features(torch.from_numpy(points).float(), torch.from_numpy(rng.normal(size=(count, 16))).float())

    return Method(name, name, extract)


def nothing(name: str = "nothing") -> Method:
    """A method that finds nothing."""
    return Method(name, name, lambda image, n: Features(torch.empty(0, 2), torch.empty(0, 8), torch.empty(0)))
