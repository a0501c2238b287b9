"""What posed sources share: images fitted to the frame, intrinsics and depth that follow, and passes over tuples."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import torch

from disk_ops.io.cache import ImageCache
from disk_ops.io.images import ImageError, Pixels, Size, read_image, size_of
from disk_ops.training.data.augment import AugmentConfig, augmented
from disk_ops.training.data.covisibility import Scene
from disk_ops.training.data.framing import NO_DEPTH, PosedImage, cropped
from disk_ops.training.data.sample import Frame, Sample, SampleError, Split
from disk_ops.training.rewards import View
from disk_ops.training.settings import setting

Fit = Literal["pad", "crop"]
_SHORTEST, _ELONGATED = 16, 16  # pixels of the shortest edge; largest ratio of the edges


@dataclasses.dataclass(frozen=True)
class TuplesConfig:
    """Which images there are and how they come into the frame."""

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


@dataclasses.dataclass(frozen=True)
class PosedConfig(AugmentConfig, TuplesConfig):  # a dataclass has the fields of the last base first
    """Settings of all posed sources."""

    def __post_init__(self) -> None:
        TuplesConfig.__post_init__(self)
        AugmentConfig.__post_init__(self)


class PosedSource(ABC):
    """Base of the sources of posed images: a class defines how an image of a scene is read.

    Args:
        name: kind and place, for messages.
        config: settings.
        frame: size and number of the images.
        scenes: what there is.
        split: images of ``train`` are augmented as the settings say, those of ``val`` never.
    """

    notes: tuple[str, ...] = ()
    """What the user should know: images that are left out, and why."""

    def __init__(
        self, name: str, config: PosedConfig, frame: Frame, scenes: Sequence[Scene], split: Split = "train"
    ) -> None:
        self.name, self.config, self.frame, self.scenes = name, config, frame, list(scenes)
        self._augments = split == "train" and config.augments
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
        if self._augments:
            views = augmented(resized, [self._scale(view) for view in resized], self.frame, self.config, rng)
        else:
            views = cropped(resized, self.frame, rng)
        return Sample(
            name=f"{scene.name}: {', '.join(scene.images[image] for image in images)}",
            images=torch.from_numpy(np.stack([view.pixels for view in views]).transpose(0, 3, 1, 2).copy()),
            mask=torch.from_numpy(np.stack([view.mask for view in views])[:, None]),
            views=tuple(_as_view(view) for view in views),
        )

    def _resized(self, scene: int, image: int) -> PosedImage:
        def load() -> PosedImage:
            posed = self.read(scene, image)
            resized = resize(posed, self._kept_size(size_of(posed.pixels)))
            # A view would keep alive all that it is a view of.
            return PosedImage(*(array if array.base is None else array.copy() for array in resized))

        return self.cache.get((scene, image), load)

    def _kept_size(self, size: Size) -> Size:
        """The size in which an image is kept: as the frame needs it, or larger, as far as it is, to be zoomed into."""
        fitted = fitted_size(size, self.frame, self.config.fit)
        reserve = min(self.config.zoom[1], size[0] / fitted[0]) if self._augments else 1.0
        return fitted if reserve <= 1 else (round(fitted[0] * reserve), round(fitted[1] * reserve))

    def _scale(self, image: PosedImage) -> float:
        """Pixels of the frame per pixel of an image as it is kept, without zoom."""
        size = size_of(image.pixels)
        return fitted_size(size, self.frame, self.config.fit)[0] / size[0]


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


def _as_view(image: PosedImage) -> View:
    depth = torch.from_numpy(image.depth) if image.depth.size else None
    K, R, t = (torch.from_numpy(np.array(array, np.float64)) for array in (image.K, image.R, image.t))
    return View(K, R, t, depth)
