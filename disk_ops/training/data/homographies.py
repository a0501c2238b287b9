"""Random homographies from a photograph to views of it that overlap."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from disk_ops.io.images import Size
from disk_ops.training.settings import setting
from disk_ops.warp import Matrix, grid_points, is_inside, map_points, scale_of

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
    """A point ``[2]`` of the photo so that a view of medium scale around it lies inside, if it can.

    If the widest view had to lie inside, the outer half of most photos would hardly ever be seen.
    """
    last = np.array(photo) - 1.0
    margin = np.minimum(np.array(frame) / 2 / math.sqrt(math.prod(config.scale)), last / 2)
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
    grid = grid_points(*(np.linspace(0, edge - 1, _GRID) for edge in frame))
    shares = []
    for first, homography in enumerate(homographies):
        source, front = map_points(np.linalg.inv(homography), grid)
        seen = front & is_inside(source, photo)
        possible = float(np.minimum(1, np.array(photo) * scale_of(homography, photo, frame) / frame).prod())
        for second, other in enumerate(homographies):
            if second != first:
                target, front = map_points(other, source)
                share = np.count_nonzero(seen & front & is_inside(target, frame)) / len(grid)
                shares.append(((first, second), share / max(possible, 1e-9)))
    both = dict(shares)
    return min((math.sqrt(both[pair] * both[pair[::-1]]) for pair in both), default=1.0)
