"""Matching accuracy on images with known homographies.

For mutual nearest neighbours of two images, the share whose reprojection error (image 1 warped into image 2) is at most
1, 2, ... 10 pixels; its mean over pairs of images is the MMA, and the mean of that over 1 to 5 pixels the paper's
AUC(5 px). "At most" is how D2-Net's evaluation counts, which the paper uses; it matters for keypoints at whole pixels.
Errors are in pixels of the images that features come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from disk_ops.evaluation.features import Extractor, Features, mutual_matches
from disk_ops.evaluation.homography_sets import HomographySet, Matrix
from disk_ops.io.images import Size, downscale, limited_size, size_of, to_rgb_float
from disk_ops.scenes.cameras import scaling

THRESHOLDS = tuple(range(1, 11))
"""Pixels up to which a match counts as correct."""


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


def repeatability(
    keypoints1: Tensor,  # [N, 2]
    keypoints2: Tensor,  # [M, 2]
    homography: Tensor | Matrix,  # [3, 3], image 1 to image 2
    size1: Size,
    size2: Size,
    threshold: float = 3.0,
) -> float | None:
    """The share of keypoints in the area that both images show that are found in both.

    A keypoint lies in the common area if the homography takes it into the other image. It is found again if a keypoint
    of the other image is within ``threshold`` pixels of there, in pixels of that image. Keypoints of both images count
    alike: found ones of both, divided by all in the common area of both (as in SuperPoint's evaluation).

    Returns:
        The share, or None where no keypoint lies in the common area.
    """
    matrix = torch.as_tensor(homography, dtype=torch.float64)
    found1, common1 = _found_again(warp(keypoints1, matrix), keypoints2, size2, threshold)
    found2, common2 = _found_again(warp(keypoints2, torch.linalg.inv(matrix)), keypoints1, size1, threshold)
    return (found1 + found2) / (common1 + common2) if common1 + common2 else None


def _found_again(
    warped: Tensor,  # [N, 2]
    keypoints: Tensor,  # [M, 2] of the image that the others were warped into
    size: Size,
    threshold: float,
) -> tuple[int, int]:
    """How many warped points lie near a keypoint, and how many lie in the image."""
    limit = warped.new_tensor(size) - 0.5
    inside = warped[((warped >= -0.5) & (warped <= limit)).all(1)]
    if not len(keypoints):
        return 0, len(inside)
    others = keypoints.to(warped.dtype)
    # Few rows at a time: the whole matrix of 8000 and 8000 points would take half a gigabyte.
    exact = "donot_use_mm_for_euclid_dist"
    nearest = [torch.cdist(rows, others, compute_mode=exact).amin(1) for rows in inside.split(1024)]
    return sum(int((distances <= threshold).sum()) for distances in nearest), len(inside)


def corner_error(
    estimate: Matrix | None,  # [3, 3], image 1 to image 2
    truth: Matrix,  # [3, 3]
    size: Size,
) -> float:
    """The mean distance, in pixels of image 2, between where two homographies take the corners of image 1.

    Corners are the centres of the corner pixels of an image of this size (width, height). Without an estimate, and
    where a corner is taken beyond the horizon, inf.
    """
    if estimate is None or np.linalg.det(estimate) == 0:
        return float("inf")
    right, bottom = size[0] - 1.0, size[1] - 1.0
    corners = torch.tensor([[0, 0], [right, 0], [right, bottom], [0, bottom]])
    error = torch.linalg.vector_norm(warp(corners, estimate) - warp(corners, truth), dim=1).mean().item()
    return error if np.isfinite(error) else float("inf")


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

    @property
    def fscore5(self) -> float:
        """The F-score of correct matches, mean over 1 to 5 pixels: unlike the accuracy it falls with lost ones, too.

        What could be found are the features of the image that has fewer.
        """
        return 2 * self.matches * self.auc5 / max(1, self.matches + min(self.features))


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


class View(NamedTuple):
    """An image of a set as features are made of it."""

    name: str
    image: Tensor  # [3, H, W] float32 in [0, 1]
    homography: Matrix  # [3, 3] from the reference, in pixels of the resized images

    @property
    def size(self) -> Size:
        """(width, height)."""
        return self.image.shape[2], self.image.shape[1]


def read_views(homography_set: HomographySet, max_size: int | None = 1024) -> Iterator[View]:
    """Read the images of a set one after the other, the reference first.

    Args:
        homography_set: from :func:`disk_ops.evaluation.homography_sets.find_homography_sets`.
        max_size: images whose longest edge is longer are downscaled to it; ``None``: never.

    Raises:
        SetError: a file can't be used.
    """
    from_reference: Matrix = np.eye(3)  # pixels of the resized reference to those of its file
    for index, path in enumerate(homography_set.images):
        homography = homography_set.read_homography(index)
        pixels = homography_set.read_pixels(index)
        size = limited_size(size_of(pixels), max_size)
        to_resized = scaling(size_of(pixels), size)
        if index == 0:
            from_reference = np.asarray(np.linalg.inv(to_resized), np.float64)
        image = torch.from_numpy(to_rgb_float(downscale(pixels, size)))
        yield View(path.name, image, to_resized @ homography @ from_reference)


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
    views = read_views(homography_set, max_size)
    reference = Features(*extractor(next(views).image))
    return [
        pair_accuracy(reference, Features(*extractor(view.image)), view.homography, (homography_set.name, view.name))
        for view in views
    ]


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
