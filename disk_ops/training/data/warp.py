"""Random homographies, and the warp of a photograph that agrees with them to 1e-3 pixels.

A homography maps pixels of the photograph to pixels of a view. Its determinant is positive where both are seen from
the same side; the third coordinate of points in front of the camera then is, too.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from disk_ops.io.images import Pixels, Size
from disk_ops.training.settings import setting

Matrix = npt.NDArray[np.floating[Any]]

_FOCAL = 1.2  # of the tilted camera, in longest edges of the frame: 45 degrees of view
_TRIES = 12
_GRID = 20  # points along each edge of the frame at which overlap is measured


@dataclasses.dataclass(frozen=True)
class WarpConfig:
    """How the views of a photograph differ in geometry."""

    scale: tuple[float, float] = setting((0.55, 1.3), "size of a view's pixels: view pixels per pixel of the photo")
    rotation: float = setting(11.0, "in the image plane: standard deviation in degrees")
    full_rotation: float = setting(0.0, "probability that a view is rotated by any angle instead")
    perspective: float = setting(30.0, "largest tilt of a view against the photo, in degrees")
    shift: float = setting(0.25, "largest shift of what the views have in common from the centre, in frame sizes")
    flip: float = setting(0.5, "probability that all views of a photo are mirrored")
    min_overlap: float = setting(0.3, "smallest part of the frame that each pair of views shares")

    def __post_init__(self) -> None:
        low, high = self.scale
        if not 0 < low <= high:
            raise ValueError(f"scale must be positive and in increasing order, got {self.scale}")
        if not 0 <= self.rotation <= 360:
            raise ValueError(f"rotation must be from 0 to 360 degrees, got {self.rotation}")
        if not 0 <= self.perspective <= 75:
            raise ValueError(f"perspective must be from 0 to 75 degrees, got {self.perspective}")
        for name in ("full_rotation", "shift", "flip", "min_overlap"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")


def random_homographies(
    photo: Size,
    frame: Size,
    views: int,
    config: WarpConfig,
    rng: np.random.Generator,
) -> Matrix:
    """Draw homographies ``[views, 3, 3]`` from a photo to views of it which overlap.

    Views that overlap too little are drawn again, each time within a narrower range (but for ``full_rotation``), down
    to no difference at all.
    """
    for strength in np.linspace(1, 0, _TRIES):
        anchor = _anchor(photo, frame, config, rng)
        homographies = np.stack([_homography(anchor, frame, config, strength, rng) for _ in range(views)])
        if smallest_overlap(homographies, photo, frame) >= config.min_overlap:
            break
    return homographies


def _anchor(photo: Size, frame: Size, config: WarpConfig, rng: np.random.Generator) -> Matrix:
    """A point ``[2]`` of the photo so that the widest view around it lies inside, if it can."""
    last = np.array(photo) - 1.0
    margin = np.minimum(np.array(frame) / 2 / config.scale[0], last / 2)
    return margin + rng.random(2) * (last - 2 * margin)


def _homography(
    anchor: Matrix,  # [2]
    frame: Size,
    config: WarpConfig,
    strength: float,
    rng: np.random.Generator,
) -> Matrix:
    """One view ``[3, 3]``; ``strength`` (0 to 1) narrows the ranges."""
    low, high = np.log(config.scale)
    scale = math.exp((low + high) / 2 + rng.uniform(-1, 1) * strength * (high - low) / 2)
    angle = math.radians(strength * config.rotation * rng.standard_normal())
    if rng.random() < config.full_rotation:
        angle = rng.uniform(0, 2 * math.pi)
    # The root makes all points of the disc of tilts equally likely: as many views are strongly tilted as in life.
    tilt = math.radians(strength * config.perspective * math.sqrt(rng.random()))
    axis = rng.uniform(0, 2 * math.pi)
    centre = (np.array(frame) - 1) / 2 + strength * config.shift * rng.uniform(-1, 1, 2) * frame
    turn = scale * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    similarity = np.eye(3)
    similarity[:2, :2], similarity[:2, 2] = turn, -turn @ anchor
    back = np.array([[1, 0, centre[0]], [0, 1, centre[1]], [0, 0, 1]])
    return np.asarray(back @ _tilt(tilt, axis, _FOCAL * max(frame)) @ similarity)


def _tilt(tilt: float, axis: float, focal: float) -> Matrix:
    """The plane ``[3, 3]`` turned around an axis in it through the origin, seen from ``focal`` away."""
    x, y, one_minus = math.cos(axis), math.sin(axis), 1 - math.cos(tilt)
    return np.array(
        [
            [1 - y * y * one_minus, x * y * one_minus, 0],
            [x * y * one_minus, 1 - x * x * one_minus, 0],
            [-y * math.sin(tilt) / focal, x * math.sin(tilt) / focal, 1],
        ]
    )


def smallest_overlap(
    homographies: Matrix,  # [T, 3, 3]
    photo: Size,
    frame: Size,
) -> float:
    """The share of the frame that the pair of views with least in common shares.

    Of the two views' shares it is the geometric mean, so that a pair of different scales isn't despised, and relative
    to what a photo smaller than the frame could fill.
    """
    grid = _points(*(np.linspace(0, edge - 1, _GRID) for edge in frame))
    shares = []
    for first, homography in enumerate(homographies):
        source, front = _map(np.linalg.inv(homography), grid)
        seen = front & _inside(source, photo)
        possible = float(np.minimum(1, np.array(photo) * _scale(homography, photo, frame) / frame).prod())
        for second, other in enumerate(homographies):
            if second != first:
                target, front = _map(other, source)
                share = np.count_nonzero(seen & front & _inside(target, frame)) / len(grid)
                shares.append(((first, second), share / max(possible, 1e-9)))
    both = dict(shares)
    return min((math.sqrt(both[pair] * both[pair[::-1]]) for pair in both), default=1.0)


def warp(
    photo: Pixels,  # [H, W, C] uint8 or float32
    homography: Matrix,  # [3, 3], photo to view
    size: Size,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return a view ``[h, w, C]`` of ``size``, in values of the photo, and a mask ``[h, w]`` of what it shows.

    Where a view reduces the photo it is smoothed first, against aliasing. Pixels whose source isn't inside the photo
    are masked, and those that the smoothing of the photo's edge reaches. They get the value of the nearest edge:
    filters that follow shall not mix in black.
    """
    width, height = size
    factor, sigma, radius = _smoothing(_scale(homography, (photo.shape[1], photo.shape[0]), size))
    # From here on pixels of the reduced photo, which are blocks of factor x factor pixels of the photo.
    x, y, front = sources(homography @ _enlarging(factor), size)
    last_x, last_y = photo.shape[1] // factor - 1, photo.shape[0] // factor - 1
    mask = front & (x >= radius) & (x <= last_x - radius) & (y >= radius) & (y <= last_y - radius)
    if not mask.any():
        return np.zeros((height, width, photo.shape[2]), np.float32), mask
    # Only the part of the photo that is seen is worked on.
    left, top = int(x[mask].min()) - radius, int(y[mask].min()) - radius
    right, bottom = min(math.ceil(x[mask].max()) + radius, last_x), min(math.ceil(y[mask].max()) + radius, last_y)
    part = _smooth(
        photo[top * factor : (bottom + 1) * factor, left * factor : (right + 1) * factor], factor, sigma, radius
    )
    grid = np.empty((1, height, width, 2), np.float32)
    grid[0, :, :, 0] = (x - left) * (2 / max(right - left, 1)) - 1
    grid[0, :, :, 1] = (y - top) * (2 / max(bottom - top, 1)) - 1
    source = np.stack(cv2.split(part)).astype(np.float32)[None]
    view = F.grid_sample(
        torch.from_numpy(source), torch.from_numpy(grid), mode="bilinear", padding_mode="border", align_corners=True
    )
    return view[0].permute(1, 2, 0).numpy(), mask


def sources(homography: Matrix, size: Size) -> tuple[Matrix, Matrix, npt.NDArray[np.bool_]]:
    """Where in the photo each pixel of a view comes from: x, y, and whether it is in front, each ``[h, w]``."""
    inverse = np.linalg.inv(homography) * np.sign(np.linalg.det(homography))
    columns, rows = np.arange(size[0], dtype=np.float64), np.arange(size[1], dtype=np.float64)[:, None]
    x, y, z = (row[0] * columns + (row[1] * rows + row[2]) for row in inverse)
    front = z > 1e-9 * np.abs(inverse[2]).max()
    z = 1 / np.where(front, z, 1)
    return x * z, y * z, front


def _enlarging(factor: int) -> Matrix:
    """From pixels of an image reduced by ``factor`` to those of the image ``[3, 3]``: x to (x + 0.5) factor - 0.5."""
    return np.array([[factor, 0, (factor - 1) / 2], [0, factor, (factor - 1) / 2], [0, 0, 1]])


def _smoothing(scale: float) -> tuple[int, float, int]:
    """How to smooth a photo for a view with ``scale`` pixels per pixel of the photo.

    Returns:
        The edge of the blocks of pixels to average; then sigma and radius of a Gaussian, in blocks (0, 0: none).
    """
    factor = max(int(1 / max(scale, 1e-3)), 1)
    scale *= factor
    if scale > 0.95:
        return factor, 0.0, 0
    # A view's pixel then has the blur (0.5 pixels) that a pixel of the photo has.
    sigma = 0.5 * math.sqrt(1 / max(scale, 0.5) ** 2 - 1)
    return factor, sigma, math.ceil(2.5 * sigma)


def _smooth(photo: Pixels, factor: int, sigma: float, radius: int) -> Pixels:
    """Average whole blocks of pixels, then blur. Both keep linear ramps exactly (but for the blur's edges)."""
    channels = photo.shape[2]
    if factor > 1:  # fractions of pixels, which INTER_AREA could average too, would distort by up to 0.1 pixels
        size = (photo.shape[1] // factor, photo.shape[0] // factor)
        photo = cv2.resize(np.ascontiguousarray(photo), size, interpolation=cv2.INTER_AREA)
    if radius > 0:
        edge = 2 * radius + 1
        photo = cv2.GaussianBlur(np.ascontiguousarray(photo), (edge, edge), sigma, borderType=cv2.BORDER_REFLECT_101)
    return photo.reshape(*photo.shape[:2], channels)


def _scale(homography: Matrix, photo: Size, frame: Size) -> float:
    """Pixels of the view per pixel of the photo, in the middle of what the view shows (1 if that is nothing)."""
    grid = _points(*(np.linspace(0, edge - 1, 9) for edge in frame))
    inverse = np.linalg.inv(homography)
    source, front = _map(inverse, grid)
    seen = grid[front & _inside(source, photo)]
    z = seen @ inverse[2, :2] + inverse[2, 2]
    # The determinant of a homography's Jacobian is det(H) over the cube of the third coordinate, here 1 / z.
    areas = np.abs(z**3 * np.linalg.det(homography))
    return math.sqrt(np.median(areas)) if len(areas) else 1.0


def _points(columns: Matrix, rows: Matrix) -> Matrix:
    """All points ``[N, 2]`` of a grid."""
    return np.stack(np.meshgrid(columns, rows), -1).reshape(-1, 2)


def _map(
    homography: Matrix,  # [3, 3]
    points: Matrix,  # [N, 2]
) -> tuple[Matrix, npt.NDArray[np.bool_]]:
    """Mapped points ``[N, 2]``, and which of them ``[N]`` are in front."""
    mapped = points @ homography[:, :2].T + homography[:, 2]
    front = mapped[:, 2] * np.sign(np.linalg.det(homography)) > 0
    return mapped[:, :2] / np.where(front, mapped[:, 2], 1)[:, None], front


def _inside(
    points: Matrix,  # [N, 2]
    size: Size,
) -> npt.NDArray[np.bool_]:
    return np.asarray(((points >= 0) & (points <= np.array(size) - 1.0)).all(1))
