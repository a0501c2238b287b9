"""What posed sources share: images fitted to the frame, intrinsics and depth that follow, and passes over tuples."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import cv2
import numpy as np
import torch

from disk_ops.io.images import ImageError, Pixels, Size, read_image, size_of
from disk_ops.training.data.cache import ImageCache
from disk_ops.training.data.covisibility import Scene
from disk_ops.training.data.sample import Frame, Sample, SampleError
from disk_ops.training.rewards import View
from disk_ops.training.settings import setting

Fit = Literal["pad", "crop"]
_SHORTEST, _ELONGATED = 16, 16  # pixels of the shortest edge; largest ratio of the edges
_GRID = 8  # points each way by which a crop looks for what another one shows
_TRIES = 4  # positions of the first crop, of which that is taken that most of the others show


@dataclasses.dataclass(frozen=True)
class PosedConfig:
    """Settings of all posed sources."""

    path: str = setting("", "folder of the scene or scenes")
    fit: Literal["pad", "crop"] = setting(
        "pad", "'pad': whole images, what is left of the frame is masked; 'crop': the frame is filled"
    )
    tuples_per_scene: int = setting(1000, "samples of a scene in a pass, drawn anew for each pass")
    blacklist: tuple[str, ...] = setting((), "names of scenes, of images, or scene/image, that aren't used")
    holdout: float = setting(0.1, "part of the scenes (of few scenes: of their images) kept for validation, by name")
    cache_mb: float = setting(512.0, "resized images that each process keeps in memory, in MB")

    def __post_init__(self) -> None:
        if self.fit not in ("pad", "crop"):
            raise ValueError(f"fit must be 'pad' or 'crop', got {self.fit!r}")
        if self.tuples_per_scene < 1:
            raise ValueError(f"tuples_per_scene must be at least 1, got {self.tuples_per_scene}")
        if not 0 <= self.holdout <= 1:
            raise ValueError(f"holdout must be from 0 to 1, got {self.holdout}")
        if not self.cache_mb >= 0:
            raise ValueError(f"cache_mb must be at least 0, got {self.cache_mb}")

    def excludes(self, scene: str, image: str | None = None) -> bool:
        """Whether the blacklist has the scene or the image."""
        names = {scene} if image is None else {scene, image, f"{scene}/{image}"}
        return not names.isdisjoint(self.blacklist)


class PosedImage(NamedTuple):
    """An image and its camera, all as arrays so that it can be cached."""

    pixels: np.ndarray  # [h, w, 3] uint8 RGB
    mask: np.ndarray  # [h, w] bool: pixels that show something
    K: np.ndarray  # [3, 3] float64, integer pixel centres
    R: np.ndarray  # [3, 3] float64
    t: np.ndarray  # [3] float64
    depth: np.ndarray  # [h', w'] float32 of the same field of view, NaN where unknown; [0, 0] if there is none
    typical_depth: np.ndarray  # [] float64: of what is seen, NaN if nothing is known


NO_DEPTH = np.zeros((0, 0), np.float32)
"""``PosedImage.depth`` of an image without depth map."""


class PosedSource(ABC):
    """Base of the sources of posed images: a class defines how an image of a scene is read."""

    notes: tuple[str, ...] = ()
    """What the user should know: images that are left out, and why."""

    def __init__(self, name: str, config: PosedConfig, frame: Frame, scenes: Sequence[Scene]) -> None:
        self.name, self.config, self.frame, self.scenes = name, config, frame, list(scenes)
        self.cache = ImageCache(config.cache_mb)
        self._starts = np.cumsum([0] + [len(scene.tuples) for scene in scenes])

    @abstractmethod
    def read(self, scene: int, image: int) -> PosedImage:
        """Read image number ``image`` of scene number ``scene`` in any size; raises `SampleError`."""

    def order(self, epoch: int, seed: int) -> np.ndarray:
        """Items ``[N]`` of a pass: of each scene at most ``tuples_per_scene`` of its tuples."""
        rng = np.random.default_rng((seed, epoch))
        chosen = []
        for start, scene in zip(self._starts, self.scenes, strict=False):
            count = len(scene.tuples)
            chosen.append(start + rng.permutation(count)[: self.config.tuples_per_scene])
        return rng.permutation(np.concatenate(chosen))

    def load(self, item: int, rng: np.random.Generator) -> Sample:
        """Read a tuple; of one with more images than the frame takes, some are drawn."""
        number = int(np.searchsorted(self._starts, item, side="right")) - 1
        scene = self.scenes[number]
        images = scene.tuples[item - self._starts[number]]
        images = images[images >= 0]
        if len(images) > self.frame.images:
            images = rng.choice(images, self.frame.images, replace=False)
        resized = [self._resized(number, int(image)) for image in images]
        offsets = _crop_offsets(resized, self.frame, rng)
        views = [_framed(view, offset, self.frame) for view, offset in zip(resized, offsets, strict=True)]
        return Sample(
            name=f"{scene.name}: {', '.join(scene.images[image] for image in images)}",
            images=torch.from_numpy(np.stack([view.pixels for view in views]).transpose(0, 3, 1, 2).copy()),
            mask=torch.from_numpy(np.stack([view.mask for view in views])[:, None]),
            views=tuple(_as_view(view) for view in views),
        )

    def _resized(self, scene: int, image: int) -> PosedImage:
        def load() -> PosedImage:
            posed = self.read(scene, image)
            resized = resize(posed, fitted_size(size_of(posed.pixels), self.frame, self.config.fit))
            # A view would keep alive all that it is a view of.
            return PosedImage(*(array if array.base is None else array.copy() for array in resized))

        return self.cache.get((scene, image), load)


# ------------------------------------------------------------------------------------------------------- reading
def read_pixels(path: Path) -> np.ndarray:
    """Decode an image to ``[h, w, 3]`` uint8; raises :class:`SampleError`."""
    try:
        pixels = read_image(path)
    except ImageError as error:
        raise SampleError(path, error) from error
    width, height = size_of(pixels)
    if min(width, height) < _SHORTEST or max(width, height) > _ELONGATED * min(width, height):
        raise SampleError(path, f"is {width}x{height}: too small or too elongated")
    return to_rgb8(pixels)


def to_rgb8(pixels: Pixels) -> np.ndarray:
    """Turn decoded pixels ``[h, w]`` or ``[h, w, 3]`` into ``[h, w, 3]`` uint8."""
    if pixels.dtype != np.uint8:
        largest = 1.0 if pixels.dtype.kind == "f" else float(np.iinfo(pixels.dtype).max)
        pixels = np.rint(pixels * (255.0 / largest)).astype(np.uint8)
    return np.repeat(pixels[:, :, None], 3, axis=2) if pixels.ndim == 2 else pixels


def median_depth(depth: np.ndarray) -> np.ndarray:
    """``PosedImage.typical_depth`` of a depth map ``[h, w]``."""
    known = depth[np.isfinite(depth)]
    return np.array(np.median(known) if known.size else np.nan, np.float64)


def same_aspect(size: Size, other: Size) -> bool:
    """Whether one size is the other one scaled, up to rounding to whole pixels."""
    return abs(size[0] * other[1] - size[1] * other[0]) <= max(*size, *other)


def check_aspect(path: Path, size: Size, camera: Size) -> None:
    """Raise :class:`SampleError` unless an image is that of its camera, in whatever size it is stored."""
    if not same_aspect(size, camera):
        raise SampleError(path, f"is {size[0]}x{size[1]}, but its camera is for {camera[0]}x{camera[1]}")


def check_camera(K: np.ndarray, R: np.ndarray, t: np.ndarray) -> str | None:
    """What is wrong with a camera, if anything is."""
    if K.shape != (3, 3) or R.shape != (3, 3) or t.shape != (3,):
        return f"K, R and t must be 3x3, 3x3 and 3 numbers, got shapes {K.shape}, {R.shape}, {t.shape}"
    if not all(np.isfinite(array).all() for array in (K, R, t)):
        return "K, R or t has numbers that aren't finite"
    if K[0, 0] <= 0 or K[1, 1] <= 0 or np.abs(K[[1, 2, 2, 2], [0, 0, 1, 2]] - [0, 0, 0, 1]).max() > 1e-6:
        return f"K must be an upper triangular matrix with positive focal lengths and 1, got {K.tolist()}"
    if np.abs(R @ R.T - np.eye(3)).max() > 1e-3 or np.linalg.det(R) < 0:
        return f"R must be a rotation, got {R.tolist()}"
    return None


# ------------------------------------------------------------------------------------------------------- fitting
def fitted_size(size: Size, frame: Frame, fit: Fit) -> Size:
    """The size at which an image just fits into the frame (``pad``) or just covers it (``crop``), aspect kept."""
    width, height = size
    wide = width * frame.height >= height * frame.width
    if wide == (fit == "pad"):  # the width is what decides
        return frame.width, max(1 if fit == "pad" else frame.height, round(height * frame.width / width))
    return max(1 if fit == "pad" else frame.width, round(width * frame.height / height)), frame.height


def scaling(size: Size, new: Size) -> np.ndarray:
    """The matrix ``[3, 3]`` that maps pixels of an image to those of the resized one: x to (x + 0.5) s - 0.5."""
    x, y = new[0] / size[0], new[1] / size[1]
    return np.array([[x, 0, 0.5 * x - 0.5], [0, y, 0.5 * y - 0.5], [0, 0, 1]])


def resize(image: PosedImage, size: Size) -> PosedImage:
    """An image and all that belongs to it in another size.

    A new pixel counts if all the pixels under it do. Depth is that of the pixel nearest to the centre: a mean over an
    edge would be the depth of nothing.
    """
    old, pixels, mask = size_of(image.pixels), resize_pixels(image.pixels, size), np.ones(size[::-1], bool)
    if not image.mask.all():
        mask = resize_pixels(image.mask.astype(np.float32), size) > 1 - 1e-4
        pixels = pixels * mask[:, :, None]
    return image._replace(
        pixels=pixels,
        mask=mask,
        K=scaling(old, size) @ image.K,
        depth=nearest(image.depth, size) if image.depth.size else NO_DEPTH,
    )


def resize_pixels(pixels: np.ndarray, size: Size) -> np.ndarray:
    """Resize ``[h, w, ...]``, averaging what lies under a pixel where the image shrinks."""
    old = size_of(pixels)
    if old == size:
        return pixels
    smaller = size[0] <= old[0] and size[1] <= old[1]
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR))


def nearest(values: np.ndarray, size: Size) -> np.ndarray:
    """Resize ``[h, w]`` to the values at the pixels that the new pixels' centres lie in."""
    width, height = size_of(values)
    columns = ((2 * np.arange(size[0]) + 1) * width) // (2 * size[0])
    rows = ((2 * np.arange(size[1]) + 1) * height) // (2 * size[1])
    return values[rows[:, None], columns]


def _framed(image: PosedImage, offset: tuple[int, int], frame: Frame) -> PosedImage:
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
    starts = rng.integers(0, room[0] + 1, (_TRIES, 2))
    common = [[_in_common(images[0], start, other, frame) for other in images[1:]] for start in starts]
    best = int(np.argmax([min(len(pixels) for pixels in of_others) for of_others in common]))
    offsets = [starts[best]]
    for space, pixels in zip(room[1:], common[best], strict=True):
        start = rng.integers(0, space + 1)
        if len(pixels):
            corner = np.median(pixels, axis=0) - box / 2 + rng.uniform(-0.125, 0.125, 2) * box
            start = np.clip(np.rint(corner), 0, space).astype(int)
        offsets.append(start)
    return [(int(x), int(y)) for x, y in offsets]


def _in_common(image: PosedImage, offset: np.ndarray, other: PosedImage, frame: Frame) -> np.ndarray:
    """Pixels ``[N, 2]`` of another image that show points of a crop, as far as their depth is known."""
    steps = (np.arange(_GRID) + 0.5) / _GRID
    columns = (offset[0] + steps * frame.width).astype(int)
    rows = (offset[1] + steps * frame.height).astype(int)
    depth = np.full((_GRID, _GRID), image.typical_depth)
    if image.depth.size:
        depth = image.depth[rows[:, None], columns]
    x, y = np.meshgrid(columns, rows)
    rays = np.stack([x, y, np.ones_like(x)], -1).reshape(-1, 3) @ np.linalg.inv(image.K).T
    world = (rays * depth.reshape(-1, 1) - image.t) @ image.R
    projected = (world @ other.R.T + other.t) @ other.K.T
    projected = projected[projected[:, 2] > 1e-9]  # also drops NaN
    pixels = projected[:, :2] / projected[:, 2:]
    return np.asarray(pixels[((pixels >= 0) & (pixels <= np.array(size_of(other.pixels)) - 1)).all(1)])


def _as_view(image: PosedImage) -> View:
    depth = torch.from_numpy(image.depth) if image.depth.size else None
    K, R, t = (torch.from_numpy(np.array(array, np.float64)) for array in (image.K, image.R, image.t))
    return View(K, R, t, depth)
