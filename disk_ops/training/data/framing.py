"""Posed images as arrays, and which parts of those of a tuple are cut out so that they show the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from disk_ops.io.images import size_of
from disk_ops.training.data.sample import Frame

GRID = 8
"""Points each way by which a crop looks for what another one shows."""
TRIES = 4
"""Positions of the first crop, of which that is taken that most of the others show."""
_JITTER = 0.125  # of a crop around what it has in common with the first, in its edges


class PosedImage(NamedTuple):
    """An image and its camera, all as arrays so that it can be cached."""

    pixels: np.ndarray  # [h, w, 3] uint8 RGB
    mask: np.ndarray  # [h, w] bool: pixels that show something
    K: np.ndarray  # [3, 3] float64, integer pixel centres; the last row is (0, 0, 1)
    R: np.ndarray  # [3, 3] float64
    t: np.ndarray  # [3] float64
    depth: np.ndarray  # [h', w'] float32 of the same field of view, NaN where unknown; [0, 0] if there is none
    typical_depth: np.ndarray  # [] float64: of what is seen, NaN if nothing is known


NO_DEPTH = np.zeros((0, 0), np.float32)
"""``PosedImage.depth`` of an image without depth map."""


def cropped(images: Sequence[PosedImage], frame: Frame, rng: np.random.Generator) -> list[PosedImage]:
    """Cut parts of the size of the frame out of the images of a tuple, padded where an image ends."""
    offsets = _crop_offsets(images, frame, rng)
    return [cut(image, offset, frame) for image, offset in zip(images, offsets, strict=True)]


def cut(image: PosedImage, offset: tuple[int, int], frame: Frame) -> PosedImage:
    """The part of an image that starts at ``offset`` (x, y) and has the size of the frame, padded where it ends."""
    x, y = offset
    cut = np.s_[y : y + frame.height, x : x + frame.width]
    size = (frame.height, frame.width)
    pixels, mask = np.zeros((*size, 3), np.uint8), np.zeros(size, bool)
    height, width = image.mask[cut].shape
    pixels[:height, :width], mask[:height, :width] = image.pixels[cut], image.mask[cut]
    depth = NO_DEPTH
    if image.depth.size:
        depth = np.full(size, np.nan, np.float32)
        depth[:height, :width] = image.depth[cut]
    shift = np.array([[1.0, 0, -x], [0, 1, -y], [0, 0, 1]])
    return image._replace(pixels=pixels, mask=mask, depth=depth, K=shift @ image.K)


def _crop_offsets(images: Sequence[PosedImage], frame: Frame, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Where the crops start: the first anywhere that others show, these around what it shows, as far as is known."""
    box = np.array([frame.width, frame.height])
    room = [np.maximum(np.array(size_of(image.pixels)) - box, 0) for image in images]
    if not any(space.any() for space in room):
        return [(0, 0)] * len(images)
    starts = rng.integers(0, room[0] + 1, (TRIES, 2))
    steps = (np.arange(GRID) + 0.5) / GRID
    grid = np.stack(np.meshgrid(steps * frame.width, steps * frame.height), -1).reshape(-1, 2)
    best, common = most_in_common(images, [(start + grid).astype(int) for start in starts])
    offsets = [starts[best]]
    for space, pixels in zip(room[1:], common, strict=True):
        start = rng.integers(0, space + 1)
        if len(pixels):
            corner = around(pixels, box, rng) - box / 2
            start = np.clip(np.rint(corner), 0, space).astype(int)
        offsets.append(start)
    return [(int(x), int(y)) for x, y in offsets]


def most_in_common(
    images: Sequence[PosedImage],
    tries: Sequence[np.ndarray],  # [N, 2] int each, pixels of the first image
) -> tuple[int, list[np.ndarray]]:
    """Which of some sets of pixels of the first image most of the other images show.

    Returns:
        Its number, and for each other image the pixels ``[M, 2]`` that show the same, as far as depth is known.
    """
    common = [[_in_common(images[0], pixels, other) for other in images[1:]] for pixels in tries]
    best = int(np.argmax([min(len(pixels) for pixels in of_others) for of_others in common]))
    return best, common[best]


def around(
    pixels: np.ndarray,  # [N, 2]
    box: np.ndarray,  # [2] width and height of the crop
    rng: np.random.Generator,
) -> np.ndarray:
    """The middle ``[2]`` of a crop around pixels, somewhat at random."""
    return np.asarray(np.median(pixels, axis=0) + rng.uniform(-_JITTER, _JITTER, 2) * box)


def _in_common(
    image: PosedImage,
    pixels: np.ndarray,  # [N, 2] int
    other: PosedImage,
) -> np.ndarray:
    """Pixels ``[M, 2]`` of another image that show what some pixels of an image do, as far as their depth is known."""
    columns, rows = pixels.T
    depth = np.full(len(pixels), image.typical_depth)
    if image.depth.size:
        depth = image.depth[rows, columns]
    rays = np.column_stack([pixels, np.ones(len(pixels), int)]) @ np.linalg.inv(image.K).T
    world = (rays * depth[:, None] - image.t) @ image.R
    projected = (world @ other.R.T + other.t) @ other.K.T
    projected = projected[projected[:, 2] > 1e-9]  # also drops NaN
    seen = projected[:, :2] / projected[:, 2:]
    return np.asarray(seen[((seen >= 0) & (seen <= np.array(size_of(other.pixels)) - 1)).all(1)])
