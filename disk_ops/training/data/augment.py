"""Posed images turned, zoomed, shifted and degraded at random, with cameras and depth that follow.

Pixels move by a similarity A. Then the camera's K becomes A K, which needn't be upper triangular any more; R, t and
depth along the optical axis stay. There is no mirroring: no camera has taken a mirrored image.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from disk_ops.io.images import size_of
from disk_ops.training.data.framing import GRID, NO_DEPTH, TRIES, PosedImage, around, most_in_common
from disk_ops.training.data.photometric import PhotometricConfig, degrade
from disk_ops.training.data.sample import Frame
from disk_ops.training.settings import setting
from disk_ops.warp import sources, warp

Config = TypeVar("Config", bound="AugmentConfig")


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """How images for training differ from those that were taken. Held-out images are left as they are."""

    rotation: float = setting(0.0, "training images are turned: standard deviation in degrees")
    full_rotation: float = setting(0.0, "probability that a training image is turned by any angle instead")
    zoom: tuple[float, float] = setting((1.0, 1.0), "least and largest enlargement of training images; 1: as fit says")
    photometric: float = setting(0.0, "degradations of training images: factor of the strengths that photos have")

    def __post_init__(self) -> None:
        if not 0 <= self.rotation <= 360:
            raise ValueError(f"rotation must be from 0 to 360 degrees, got {self.rotation}")
        if not 0 <= self.full_rotation <= 1:
            raise ValueError(f"full_rotation must be from 0 to 1, got {self.full_rotation}")
        low, high = self.zoom
        if not 0.1 <= low <= high <= 10:
            raise ValueError(f"zoom must be two numbers from 0.1 to 10 in order, got {self.zoom}")
        if not self.photometric >= 0:
            raise ValueError(f"photometric must be at least 0, got {self.photometric}")

    @property
    def augments(self) -> bool:
        """Whether anything is changed."""
        return bool(self.rotation or self.full_rotation or self.zoom != (1, 1) or self.photometric)

    def eased(self: Config, difficulty: float) -> Config:
        """The settings of images that are changed only by a part, 0 to 1, of what these settings say."""
        low, high = self.zoom
        return dataclasses.replace(
            self,
            rotation=self.rotation * difficulty,
            full_rotation=self.full_rotation * difficulty,
            zoom=(low**difficulty, high**difficulty),
            photometric=self.photometric * difficulty,
        )


def augmented(
    images: Sequence[PosedImage],
    scales: Sequence[float],
    frame: Frame,
    config: AugmentConfig,
    rng: np.random.Generator,
) -> list[PosedImage]:
    """Return views of the images of a tuple, each changed in its own way, that show the same as far as is known.

    Args:
        images: in any size, best as large as the largest zoom needs.
        scales: pixels of the frame per pixel of each image, without zoom.
        frame: the size of the views.
        config: what is changed.
        rng: draws how.
    """
    turns = [_random_turn(scale, config, rng) for scale in scales]
    anchors = _anchors(images, turns, frame, rng)
    views = [
        moved(image, _similarity(turn, anchor, frame), frame)
        for image, turn, anchor in zip(images, turns, anchors, strict=True)
    ]
    degradation = PhotometricConfig(photometric=config.photometric)
    for view in views:
        view.pixels[:] = degrade(view.pixels, degradation, rng)
        view.pixels[~view.mask] = 0
    return views


def moved(
    image: PosedImage,
    similarity: np.ndarray,  # [3, 3] pixels of the image to those of the frame
    frame: Frame,
) -> PosedImage:
    """An image and all that belongs to it moved into a frame.

    Masked pixels look like their surroundings, for filters that follow. A pixel counts if all the pixels under it do,
    and depth is that of the nearest one.
    """
    size = (frame.width, frame.height)
    view, mask = warp(image.pixels, similarity, size)
    if not image.mask.all():
        counted, _ = warp(image.mask[:, :, None].astype(np.float32), similarity, size)
        mask &= counted[:, :, 0] > 1 - 1e-4
    depth = NO_DEPTH
    if image.depth.size:
        x, y, _ = sources(similarity, size)
        column, row = np.rint(x).astype(int), np.rint(y).astype(int)
        width, height = size_of(image.depth)
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        depth = np.full(size[::-1], np.nan, np.float32)
        depth[inside] = image.depth[row[inside], column[inside]]
    return image._replace(pixels=np.rint(view).astype(np.uint8), mask=mask, depth=depth, K=similarity @ image.K)


def _random_turn(scale: float, config: AugmentConfig, rng: np.random.Generator) -> np.ndarray:
    """How an image is turned and scaled ``[2, 2]``."""
    low, high = np.log(config.zoom)
    scale *= math.exp(rng.uniform(low, high))
    angle = math.radians(config.rotation * rng.standard_normal())
    if rng.random() < config.full_rotation:
        angle = rng.uniform(0, 2 * math.pi)
    return scale * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def _similarity(
    turn: np.ndarray,  # [2, 2]
    anchor: np.ndarray,  # [2]
    frame: Frame,
) -> np.ndarray:
    """The matrix ``[3, 3]`` that turns an image around a pixel of it, which comes into the middle of the frame."""
    similarity = np.eye(3)
    similarity[:2, :2] = turn
    similarity[:2, 2] = (np.array([frame.width, frame.height]) - 1) / 2 - turn @ anchor
    return similarity


def _anchors(
    images: Sequence[PosedImage],
    turns: Sequence[np.ndarray],  # [2, 2] each
    frame: Frame,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """The pixel ``[2]`` of each image in the middle of its view: the first anywhere, the others by what it shows."""
    box = np.array([frame.width, frame.height])
    boxes = [box / math.sqrt(np.linalg.det(turn)) for turn in turns]  # in pixels of the images
    ranges = [_room(image, footprint) for image, footprint in zip(images, boxes, strict=True)]
    starts = rng.uniform(*ranges[0], (TRIES, 2))
    steps = (np.arange(GRID) + 0.5) / GRID - 0.5
    grid = np.stack(np.meshgrid(steps * frame.width, steps * frame.height), -1).reshape(-1, 2)
    grid = grid @ np.linalg.inv(turns[0]).T
    tries = [_inside(np.rint(start + grid).astype(int), images[0]) for start in starts]
    best, common = most_in_common(images, tries)
    anchors = [starts[best]]
    for footprint, (low, high), pixels in zip(boxes[1:], ranges[1:], common, strict=True):
        anchor = rng.uniform(low, high)
        if len(pixels):
            anchor = np.clip(around(pixels, footprint, rng), low, high)
        anchors.append(anchor)
    return anchors


def _room(
    image: PosedImage,
    footprint: np.ndarray,  # [2] size of the view in pixels of the image
) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest pixel ``[2]`` in the middle of a view that, upright, is filled, or shows all of the image."""
    last = np.array(size_of(image.pixels)) - 1.0
    half = (footprint - 1) / 2
    return np.minimum(half, last - half), np.maximum(half, last - half)


def _inside(
    pixels: np.ndarray,  # [N, 2]
    image: PosedImage,
) -> np.ndarray:
    """The pixels ``[M, 2]`` that an image has."""
    return np.asarray(pixels[((pixels >= 0) & (pixels < size_of(image.pixels))).all(1)])
