"""What posed sources share: images fitted to the frame, intrinsics and depth that follow, and passes over tuples."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from disk_ops.io.cache import ImageCache
from disk_ops.io.images import ImageError, Size, read_image, resize_pixels, size_of, to_rgb8
from disk_ops.scenes.cameras import scaling
from disk_ops.scenes.errors import SampleError
from disk_ops.training.data.augment import AugmentConfig, augmented
from disk_ops.training.data.framing import NO_DEPTH, PosedImage, cropped
from disk_ops.training.data.sample import Frame, Sample, Split
from disk_ops.training.data.tuples import Scene
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


# ------------------------------------------------------------------------------------------------------- fitting
def fitted_size(size: Size, frame: Frame, fit: Fit) -> Size:
    """The size at which an image just fits into the frame (``pad``) or just covers it (``crop``), aspect kept."""
    width, height = size
    wide = width * frame.height >= height * frame.width
    if wide == (fit == "pad"):  # the width is what decides
        return frame.width, max(1 if fit == "pad" else frame.height, round(height * frame.width / width))
    return max(1 if fit == "pad" else frame.width, round(width * frame.height / height)), frame.height


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
