"""Homography sets (HPatches, Oxford affine) as data: to validate on, or to train on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from disk_ops.evaluation.homography_sets import HomographySet, SetError, find_homography_sets
from disk_ops.io.cache import ImageCache
from disk_ops.io.images import Size, downscale, size_of, to_rgb_float
from disk_ops.scenes.cameras import scaling
from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.training.data.sample import Frame, Sample, Split, held_out_names
from disk_ops.training.settings import setting


@dataclass(frozen=True)
class HomographySetsConfig:
    """Settings of :class:`HomographySetsSource`."""

    path: str = setting("", "folder of homography sets in the layout of HPatches or Oxford affine, at any depth")
    holdout: float = setting(1.0, "part of the sets that is kept for validation, chosen by name; 1: all")
    cache_mb: float = setting(128.0, "decoded images that each process keeps in memory, in MB")

    def __post_init__(self) -> None:
        if not 0 <= self.holdout <= 1:
            raise ValueError(f"holdout must be from 0 to 1, got {self.holdout}")
        if not self.cache_mb >= 0:
            raise ValueError(f"cache_mb must be at least 0, got {self.cache_mb}")


class HomographySetsSource:
    """The reference image of a set with each of the others, reduced to fit the frame and padded.

    The common plane of ``Sample.homographies`` is the reference image as it is in the sample, so the first is the
    identity. With frames of more than two images, the further ones are drawn from the others of the set.

    Args:
        config: settings.
        frame: size and number of the images.
        split: ``val`` are the sets that are held out, ``train`` the others.

    Raises:
        DataError: if there are no sets, or none for the split.
    """

    def __init__(self, config: HomographySetsConfig, frame: Frame, split: Split) -> None:
        self.config, self.frame = config, frame
        self.name, self.notes = f"homography {config.path}", ()
        self.sets = _split(_find(config.path), config, split)
        self.items = [  # a set, and the image beside the reference
            (number, index)
            for number, homography_set in enumerate(self.sets)
            for index in range(1, len(homography_set.images))
            if len(homography_set.images) >= frame.images
        ]
        if not self.items:
            raise DataError(f"homography: no set in {config.path} has the {frame.images} images that a sample needs")
        self.cache = ImageCache(config.cache_mb)

    def order(self, epoch: int, seed: int) -> np.ndarray:
        """Items ``[N]`` int64 of a pass: each pair of the reference and another image once."""
        return np.random.default_rng((seed, epoch)).permutation(len(self.items))

    def load(self, item: int, rng: np.random.Generator) -> Sample:
        """Read the images of an item."""
        number, index = self.items[item]
        homography_set, count = self.sets[number], self.frame.images
        further = [other for other in range(1, len(homography_set.images)) if other != index]
        chosen = [0, index, *rng.choice(further, count - 2, replace=False).tolist()] if count > 2 else [0, index]
        images = torch.zeros(count, 3, self.frame.height, self.frame.width, dtype=torch.uint8)
        mask = torch.zeros(count, 1, self.frame.height, self.frame.width, dtype=torch.bool)
        homographies = np.empty((count, 3, 3))
        from_reference: np.ndarray = np.eye(3)
        for i, image in enumerate(chosen):
            pixels, original = self._image(homography_set, image)
            height, width = pixels.shape[1:]
            images[i, :, :height, :width] = torch.tensor(pixels)
            mask[i, :, :height, :width] = True
            to_resized = scaling((int(original[0]), int(original[1])), (width, height))
            if i == 0:
                from_reference = np.linalg.inv(to_resized)
                homographies[0] = np.eye(3)
            else:
                homographies[i] = to_resized @ self._homography(homography_set, image) @ from_reference
        name = f"{homography_set.name} {'-'.join(homography_set.images[image].name for image in chosen)}"
        return Sample(name, images, mask, homographies=torch.from_numpy(homographies))

    def _image(self, homography_set: HomographySet, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Pixels ``[3, h, w]`` uint8 that fit the frame, and the width and height of the file ``[2]``."""

        def load() -> tuple[np.ndarray, np.ndarray]:
            pixels = homography_set.read_pixels(index)
            resized = downscale(pixels, _fitting_size(size_of(pixels), (self.frame.width, self.frame.height)))
            return np.rint(to_rgb_float(resized) * 255).astype(np.uint8), np.array(size_of(pixels))

        try:
            return self.cache.get(homography_set.images[index], load)
        except SetError as error:
            raise SampleError(error.path, error.reason) from error

    def _homography(self, homography_set: HomographySet, index: int) -> np.ndarray:
        try:
            return homography_set.read_homography(index)
        except SetError as error:
            raise SampleError(error.path, error.reason) from error


def _fitting_size(size: Size, frame: Size) -> Size:
    """The largest size of that aspect within the frame, rounded; never larger than ``size``."""
    if size[0] <= frame[0] and size[1] <= frame[1]:
        return size
    # In integers, so that the result doesn't depend on floating point. The tighter edge is met exactly.
    numerator, denominator = (frame[0], size[0]) if frame[0] * size[1] <= frame[1] * size[0] else (frame[1], size[1])
    width, height = (max(1, (2 * edge * numerator + denominator) // (2 * denominator)) for edge in size)
    return min(width, frame[0]), min(height, frame[1])


def _find(path: str) -> list[HomographySet]:
    if not path:
        raise DataError("homography: path must name a folder of homography sets, got an empty one")
    try:
        return find_homography_sets(Path(path))
    except SetError as error:
        raise DataError(f"homography: {error}") from error


def _split(sets: list[HomographySet], config: HomographySetsConfig, split: Split) -> list[HomographySet]:
    """The sets of a split."""
    held_out = held_out_names([entry.name for entry in sets], config.holdout)
    chosen = [entry for entry in sets if (entry.name in held_out) == (split == "val")]
    if not chosen:
        what = 'use = "val" takes them for validation only' if split == "train" else "holdout = 1 takes all of them"
        raise DataError(
            f"homography: no set in {config.path} is left for {split}: "
            f"there are {len(sets)}, and holdout is {config.holdout}; {what}"
        )
    return chosen
