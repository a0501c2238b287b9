"""Matching accuracy on images with known homographies: HPatches, Oxford affine, and sets in their layouts.

For mutual nearest neighbours of two images, the share whose reprojection error (image 1 warped into image 2) is at most
1, 2, ... 10 pixels; its mean over pairs of images is the MMA, and the mean of that over 1 to 5 pixels the paper's
AUC(5 px). "At most" is how D2-Net's evaluation counts, which the paper uses; it matters for keypoints at whole pixels.
Errors are in pixels of the images that features come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Extractor, Features, mutual_matches
from disk_ops.io.images import (
    IMAGE_EXTENSIONS,
    ImageError,
    Pixels,
    Size,
    downscale,
    limited_size,
    read_image,
    size_of,
    to_rgb_float,
)
from disk_ops.io.inputs import natural_key

THRESHOLDS = tuple(range(1, 11))
"""Pixels up to which a match counts as correct."""

_LAYOUTS = (  # homography file, image file
    (re.compile(r"H1to(\d+)p"), "img{}"),  # Oxford
    (re.compile(r"H_1_(\d+)"), "{}"),  # HPatches
)
Matrix = npt.NDArray[np.float64]


class SetError(EvaluationError):
    """A homography set, or a file of it, that can't be used."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, str(reason)

    def __reduce__(self) -> tuple[type, tuple[Path, str]]:
        return type(self), (self.path, self.reason)


@dataclass(frozen=True)
class HomographySet:
    """A reference image and others, with the homography from the reference to each: files, not yet read."""

    name: str  # path below the folder that was searched
    images: tuple[Path, ...]  # the reference first
    homographies: tuple[Path, ...]  # one less

    @property
    def collection(self) -> str:
        """What the set belongs to: the folder that holds it, or itself."""
        return self.name.rpartition("/")[0] or self.name

    def read_pixels(self, index: int) -> Pixels:
        """Decode an image, ``[H, W]`` or ``[H, W, 3]``."""
        try:
            return read_image(self.images[index])
        except ImageError as error:
            raise SetError(self.images[index], error) from error

    def read_homography(self, index: int) -> Matrix:
        """The homography ``[3, 3]`` from the reference to an image, in pixels of the files."""
        if index == 0:
            return np.eye(3)
        path = self.homographies[index - 1]
        try:
            numbers = np.array(path.read_text().split(), dtype=np.float64)
        except (OSError, ValueError) as error:
            raise SetError(path, f"can't be read as numbers: {error}") from error
        if numbers.size != 9 or not np.isfinite(numbers).all() or np.linalg.det(numbers.reshape(3, 3)) == 0:
            raise SetError(path, "must hold the 9 numbers of an invertible 3x3 matrix")
        return numbers.reshape(3, 3)


def find_homography_sets(folder: str | Path) -> list[HomographySet]:
    """Find homography sets in a folder, which may be one itself, or hold them at any depth; in natural order.

    A set is a folder with ``H1to2p``, ... and ``img1.*``, ... (Oxford), or ``H_1_2``, ... and ``1.*``, ... (HPatches).

    Raises:
        SetError: there is none, or one lacks an image.
    """
    root = Path(folder)
    if not root.is_dir():
        raise SetError(root, "no such folder")
    sets = list(_sets_below(root, root, set()))
    if not sets:
        raise SetError(root, "no homography set: looked for folders with H1to2p and img1.*, or H_1_2 and 1.*")
    return sets


def _sets_below(folder: Path, root: Path, visited: set[Path]) -> Iterator[HomographySet]:
    if folder.resolve() in visited:  # links may lead in circles
        return
    visited.add(folder.resolve())
    try:
        entries = sorted(folder.iterdir(), key=lambda path: natural_key(path.name))
    except OSError as error:
        raise SetError(folder, error.strerror or error) from error
    name = folder.relative_to(root).as_posix() if folder != root else root.resolve().name
    for pattern, image_name in _LAYOUTS:
        numbered = [(match[1], path) for path in entries if (match := pattern.fullmatch(path.name))]
        if numbered:
            images = [_image(folder, entries, image_name.format(number)) for number in ("1", *dict(numbered))]
            yield HomographySet(name, tuple(images), tuple(path for _, path in numbered))
            return
    for path in entries:
        if path.is_dir() and not path.name.startswith("."):
            yield from _sets_below(path, root, visited)


def _image(folder: Path, entries: Sequence[Path], stem: str) -> Path:
    for path in entries:
        if path.stem == stem and path.suffix.lower() in IMAGE_EXTENSIONS:
            return path
    raise SetError(folder, f"has a homography for the image {stem}.*, but not the image")


def resize_matrix(original: Size, resized: Size) -> Matrix:
    """The map ``[3, 3]`` from pixels of an image to those of its resized copy; pixel centres are integers."""
    sx, sy = resized[0] / original[0], resized[1] / original[1]
    return np.array([[sx, 0, 0.5 * sx - 0.5], [0, sy, 0.5 * sy - 0.5], [0, 0, 1]])


def warp(
    points: Tensor,  # [N, 2]
    homography: Tensor | Matrix,  # [3, 3]
) -> Tensor:
    """Return warped points ``[N, 2]`` in float64; inf for those that a plane's horizon lies in front of."""
    matrix = torch.as_tensor(homography, dtype=torch.float64, device=points.device)
    warped = torch.cat([points.double(), torch.ones_like(points[:, :1], dtype=torch.float64)], 1) @ matrix.mT
    behind = warped[:, 2] * torch.linalg.det(matrix) <= 0
    return torch.where(behind[:, None], torch.inf, warped[:, :2] / torch.where(behind, 1, warped[:, 2])[:, None])


def reprojection_errors(
    features1: Features,
    features2: Features,
    matches: Tensor,  # [K, 2] int64
    homography: Tensor | Matrix,  # [3, 3], image 1 to image 2
) -> Tensor:
    """Distance ``[K]`` in float64 of each match from where the homography takes its point of image 1."""
    expected = warp(features1.keypoints[matches[:, 0]], homography)
    return torch.linalg.vector_norm(expected - features2.keypoints[matches[:, 1]].double(), dim=1)


def matching_accuracy(
    errors: Tensor,  # [K]
    thresholds: Sequence[float] = THRESHOLDS,
) -> tuple[float, ...]:
    """Share of the errors up to each threshold; 0 where there is no match. NaN is within none."""
    if not len(errors):
        return (0.0,) * len(thresholds)
    return tuple((errors <= threshold).double().mean().item() for threshold in thresholds)


@dataclass(frozen=True)
class PairAccuracy:
    """How well two images were matched."""

    set: str
    image: str  # the one that the reference image was matched to
    features: tuple[int, int]
    matches: int
    accuracy: tuple[float, ...]  # at each of THRESHOLDS

    @property
    def auc5(self) -> float:
        """The paper's AUC(5 px): the mean over 1 to 5 pixels."""
        return sum(self.accuracy[:5]) / 5


def pair_accuracy(
    features1: Features,
    features2: Features,
    homography: Tensor | Matrix,  # [3, 3], image 1 to image 2
    name: tuple[str, str] = ("", ""),
) -> PairAccuracy:
    """Match the features of two images and compare the matches with the truth."""
    matches = mutual_matches(features1, features2)
    errors = reprojection_errors(features1, features2, matches, homography)
    counts = (len(features1.keypoints), len(features2.keypoints))
    return PairAccuracy(*name, counts, len(matches), matching_accuracy(errors))


def evaluate_set(
    homography_set: HomographySet,
    extractor: Extractor,
    max_size: int | None = 1024,
) -> list[PairAccuracy]:
    """Match the reference image of a set to each of the others; every image is read and extracted once.

    Args:
        homography_set: from :func:`find_homography_sets`.
        extractor: gives the features of an image.
        max_size: images whose longest edge is longer are downscaled to it; ``None``: never.

    Raises:
        SetError: a file can't be used.
    """
    reference, result = None, []
    for index, path in enumerate(homography_set.images):
        homography = homography_set.read_homography(index)
        pixels = homography_set.read_pixels(index)
        size = limited_size(size_of(pixels), max_size)
        features = Features(*extractor(torch.from_numpy(to_rgb_float(downscale(pixels, size)))))
        to_resized = resize_matrix(size_of(pixels), size)
        if reference is None:
            reference, from_resized = features, np.linalg.inv(to_resized)
        else:
            scaled = to_resized @ homography @ from_resized
            result.append(pair_accuracy(reference, features, scaled, (homography_set.name, path.name)))
    return result


@dataclass(frozen=True)
class Summary:
    """Means over pairs of images."""

    pairs: int
    features: float  # per image of a pair
    matches: float  # per pair
    accuracy: tuple[float, ...]  # MMA at each of THRESHOLDS
    auc5: float


def summarize(pairs: Iterable[PairAccuracy]) -> Summary:
    """Average over pairs of images; every pair counts alike."""
    pairs = list(pairs)
    if not pairs:
        raise ValueError("pairs must hold at least one pair, got none")
    return Summary(
        len(pairs),
        float(np.mean([pair.features for pair in pairs])),
        float(np.mean([pair.matches for pair in pairs])),
        tuple(np.mean([pair.accuracy for pair in pairs], axis=0).tolist()),
        float(np.mean([pair.auc5 for pair in pairs])),
    )
