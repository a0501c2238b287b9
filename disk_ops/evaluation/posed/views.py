"""Images with known cameras, and reading them in a limited size: intrinsics, points and lens follow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.pose import relative_pose
from disk_ops.io.images import (
    ImageError,
    Pixels,
    Size,
    downscale,
    limited_size,
    read_image,
    size_of,
    to_rgb8,
    to_rgb_float,
)
from disk_ops.scenes.cameras import same_aspect, scaling
from disk_ops.scenes.undistortion import Lens, undistort_pixels, undistortion_map

Array = npt.NDArray[np.float64]


class LoadedView(NamedTuple):
    """An image as features are extracted from it, and how its points relate to the camera."""

    image: Tensor  # [3, H, W] float32 in [0, 1]
    mask: npt.NDArray[np.bool_] | None  # [H, W] pixels that show something; None: all
    K: Array  # [3, 3] of the image before it is turned
    to_camera: Array  # [3, 3] from pixels of ``image`` to those that K is for

    def in_camera(
        self,
        points: Tensor,  # [N, 2] pixels of the image
    ) -> Array:
        """The points ``[N, 2]`` float64 as pixels that K is for."""
        xy = points.detach().cpu().double().numpy().reshape(-1, 2)
        return np.asarray(xy @ self.to_camera[:2, :2].T + self.to_camera[:2, 2])


@dataclass(frozen=True, eq=False)
class View:
    """An image file with its camera: x_cam = R X_world + t, integer pixel centres."""

    path: Path
    K: Array  # [3, 3]
    R: Array  # [3, 3]
    t: Array  # [3]
    size: Size | None = None  # that K is for; None: that of the file
    turns: int = 0  # quarter turns counterclockwise that put the image upright, as of numpy.rot90
    lens: Lens | None = None  # of a camera whose images are undistorted first; K and size are those of its pinhole

    def load(self, max_size: int | None) -> LoadedView:
        """Read the image, undistorted, scaled down so that its longest edge is at most ``max_size``, and upright.

        Raises:
            EvaluationError: the file can't be used.
        """
        try:
            pixels = read_image(self.path)
        except ImageError as error:
            raise EvaluationError(f"{self.path}: {error}") from error
        stored, expected = size_of(pixels), self.lens.size if self.lens else self.size
        if expected is not None and not same_aspect(stored, expected):
            got = f"{stored[0]}x{stored[1]}, but its camera is for {expected[0]}x{expected[1]}"
            raise EvaluationError(f"{self.path}: is {got}")
        mask = None
        if self.lens is not None and self.lens.distorted:
            pixels, mask = _undistorted(pixels, self.lens, max_size)
        size = limited_size(size_of(pixels), max_size)
        K = scaling(self.size or stored, size) @ self.K
        if mask is not None:
            mask = downscale(mask.astype(np.uint8) * 255, size) == 255
        pixels = np.ascontiguousarray(np.rot90(downscale(pixels, size), self.turns))
        mask = None if mask is None else np.ascontiguousarray(np.rot90(mask, self.turns))
        return LoadedView(torch.from_numpy(to_rgb_float(pixels)), mask, K, unturning(size, self.turns))


@dataclass(frozen=True, eq=False)
class PosedPair:
    """Two images and their relative pose."""

    name: str  # of its own among all pairs
    scene: str
    views: tuple[View, View]
    truth: tuple[Path, ...]  # files that the cameras come from
    covisibility: float | None = None  # how much the images have in common, 0 to 1; None: not known

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that the pair is made of."""
        return (self.views[0].path, self.views[1].path, *self.truth)

    @property
    def pose(self) -> tuple[Array, Array]:
        """``(R [3, 3], t [3])`` of the second camera relative to the first."""
        first, second = self.views
        return relative_pose(first.R, first.t, second.R, second.t)


def unturning(size: Size, turns: int) -> Array:
    """The map ``[3, 3]`` from pixels of an image that was turned by quarters, as by numpy.rot90, back to it.

    Args:
        size: of the image before it was turned.
        turns: quarter turns counterclockwise.
    """
    matrix = np.eye(3)
    width, height = size
    for _ in range(turns % 4):  # the pixel (x, y) comes from (width - 1 - y, x)
        matrix = matrix @ np.array([[0.0, -1, width - 1], [1, 0, 0], [0, 0, 1]])
        width, height = height, width
    return matrix


def _undistorted(pixels: Pixels, lens: Lens, max_size: int | None) -> tuple[Pixels, npt.NDArray[np.bool_]]:
    """The pinhole's image at up to twice the size that is needed, as it is averaged afterwards, and its mask."""
    where = undistortion_map(lens, limited_size(lens.pinhole_size, None if max_size is None else 2 * max_size))
    return undistort_pixels(to_rgb8(pixels), lens, where)
