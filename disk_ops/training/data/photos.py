"""Any folder of photographs: views of each by random homographies, degraded independently."""

from __future__ import annotations

import dataclasses
from pathlib import Path, PurePosixPath

import cv2
import numpy as np
import torch

from disk_ops.io.cache import ImageCache
from disk_ops.io.images import ImageError, Pixels, downscale, limited_size, read_image, size_of
from disk_ops.io.inputs import ImageFile, InputError, list_images
from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.training.data.homographies import WarpConfig, random_homographies
from disk_ops.training.data.photometric import PhotometricConfig, degrade
from disk_ops.training.data.sample import Frame, Sample, Split, held_out_names
from disk_ops.training.settings import setting
from disk_ops.warp import warp

_SMALLEST = 32  # pixels of the shortest edge of a photo of which views are made


@dataclasses.dataclass(frozen=True)
class FolderConfig:
    """Which photographs there are."""

    path: str = setting("", "folder of photographs, searched with all its subfolders")
    holdout: float = setting(0.05, "part of the photos that is kept for validation, chosen by file name")
    balance: float = setting(0.0, "0: photos equally often, 1: subfolders equally often, or in between")
    max_size: int = setting(1024, "longest edge in pixels; larger photos are reduced when they are read")
    cache_mb: float = setting(512.0, "decoded photos that each process keeps in memory, in MB")

    def __post_init__(self) -> None:
        for name in ("holdout", "balance"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        if self.max_size < _SMALLEST:
            raise ValueError(f"max_size must be at least {_SMALLEST} pixels, got {self.max_size}")
        if not self.cache_mb >= 0:
            raise ValueError(f"cache_mb must be at least 0, got {self.cache_mb}")


@dataclasses.dataclass(frozen=True)
class PhotosConfig(PhotometricConfig, WarpConfig, FolderConfig):  # a dataclass has the fields of the last base first
    """Settings of :class:`PhotosSource`."""

    def __post_init__(self) -> None:
        for base in (FolderConfig, WarpConfig, PhotometricConfig):
            base.__post_init__(self)

    def eased(self, difficulty: float) -> PhotosConfig:
        """The settings of views that differ only by a part, 0 to 1, of what these settings say."""
        low, high = self.scale
        return dataclasses.replace(
            self,
            scale=(low**difficulty, high**difficulty),
            photometric=self.photometric * difficulty,
            **{
                name: getattr(self, name) * difficulty for name in ("rotation", "full_rotation", "perspective", "shift")
            },
        )


class PhotosSource:
    """Views of photographs. ``Sample.homographies`` map pixels of the photo (reduced, mirrored) to each view.

    Args:
        config: settings.
        frame: size and number of the views.
        split: ``val`` are the photos that are held out, ``train`` the others. Adding files moves none from one to the
            other, unless there are so few that one of both would be empty.

    Raises:
        DataError: if there are no photos.
    """

    def __init__(self, config: PhotosConfig, frame: Frame, split: Split) -> None:
        self.config, self.frame, self.split = config, frame, split
        self.name = f"photos {config.path}"
        self.notes: tuple[str, ...] = ()
        self.files = _split(_list_photos(config.path), config, split)
        self.cache = ImageCache(config.cache_mb)

    def order(self, epoch: int, seed: int) -> np.ndarray:
        """Items ``[N]`` of a pass."""
        rng = np.random.default_rng((seed, epoch))
        if self.config.balance == 0 or self.split == "val":  # each photo that is held out counts
            return rng.permutation(len(self.files))
        return rng.permutation(_balanced([file.name for file in self.files], self.config.balance, rng))

    def load(self, item: int, rng: np.random.Generator) -> Sample:
        """Make views of a photo."""
        photo = self._photo(self.files[item].path)
        if rng.random() < self.config.flip:
            photo = np.asarray(cv2.flip(photo, 1))
        size = (self.frame.width, self.frame.height)
        homographies = random_homographies(size_of(photo), size, self.frame.images, self.config, rng)
        images = np.empty((self.frame.images, self.frame.height, self.frame.width, 3), np.uint8)
        masks = np.empty(images.shape[:3], np.bool_)
        for index, homography in enumerate(homographies):
            view, masks[index] = warp(photo, homography, size)
            images[index] = degrade(np.rint(view).astype(np.uint8), self.config, rng)
        images[~masks] = 0
        return Sample(
            name=self.files[item].name,
            images=torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
            mask=torch.from_numpy(masks)[:, None],
            homographies=torch.from_numpy(homographies),
        )

    def _photo(self, path: Path) -> Pixels:
        try:
            return self.cache.get((path, self.config.max_size), lambda: _read_photo(path, self.config.max_size))
        except ImageError as error:
            raise SampleError(path, error) from error


def _list_photos(path: str) -> list[ImageFile]:
    if not path:
        raise DataError("photos: path must name a folder of photographs, got an empty one")
    if not Path(path).is_dir():
        raise DataError(f"photos: no such folder: {path}")
    try:
        return list_images([Path(path)]).images
    except InputError as error:
        raise DataError(f"photos: {error}") from error


def _split(files: list[ImageFile], config: PhotosConfig, split: Split) -> list[ImageFile]:
    """The photos of a split."""
    held_out = held_out_names([file.name for file in files], config.holdout)
    chosen = [file for file in files if (file.name in held_out) == (split == "val")]
    if not chosen:
        raise DataError(
            f"photos: {config.path} has no photos for {split}: {len(files)} in all, holdout is {config.holdout}"
        )
    return chosen


def _balanced(names: list[str], balance: float, rng: np.random.Generator) -> np.ndarray:
    """As many items as there are names, those of small folders more often and those of large ones more rarely."""
    folders: dict[str, list[int]] = {}
    for item, name in enumerate(names):
        folders.setdefault(str(PurePosixPath(name).parent), []).append(item)
    weights = np.array([len(items) ** (1 - balance) for items in folders.values()])
    ends = np.rint(np.cumsum(weights) / weights.sum() * len(names)).astype(int)  # rounding errors don't add up
    chosen = []
    for items, count in zip(folders.values(), np.diff(ends, prepend=0), strict=True):
        rounds, rest = divmod(int(count), len(items))
        chosen += [np.tile(items, rounds), rng.choice(items, rest, replace=False)]
    return np.concatenate(chosen).astype(np.int64)


def _read_photo(path: Path, max_size: int) -> Pixels:
    """Decode a photo to RGB ``[H, W, 3]`` uint8."""
    pixels = read_image(path)
    if pixels.dtype == np.uint16:
        pixels = ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)
    elif pixels.dtype != np.uint8:
        pixels = np.rint(pixels * 255).astype(np.uint8)
    pixels = downscale(pixels, limited_size(size_of(pixels), max_size))
    if min(size_of(pixels)) < _SMALLEST:
        raise ImageError(f"is too small: {pixels.shape[1]}x{pixels.shape[0]} pixels")
    return np.ascontiguousarray(np.broadcast_to(np.atleast_3d(pixels), (*pixels.shape[:2], 3)))
