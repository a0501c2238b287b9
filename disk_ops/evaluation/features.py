"""Features of images as the evaluation takes them, from a detector or from OpenCV's SIFT, and their matches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from disk_ops._keypoints import find_maxima
from disk_ops.detector import DISKDetector
from disk_ops.matching import MutualNearestNeighbor
from disk_ops.multiscale import MultiscaleDetector
from disk_ops.ops import sample_grid
from disk_ops.subpixel import refine_keypoints


class Features(NamedTuple):
    """Keypoints, descriptors and scores of one image, on the CPU; best first where there are scores."""

    keypoints: Tensor  # [N, 2] xy pixels, integer at pixel centres
    descriptors: Tensor  # [N, D]
    scores: Tensor | None = None  # [N]; None where the method has none


Reader = Callable[[Tensor], Tensor]
"""Pixels [1, N, 2] to their descriptors [1, N, D]: see :meth:`disk_ops.DISKDetector.heatmap_and_reader`."""

Extractor = Callable[[Tensor], "Features | tuple[Tensor, Tensor]"]
"""An image [3, H, W] in [0, 1], float32, to its keypoints [N, 2] and descriptors [N, D]."""


class DetectorExtractor:
    """Extract features with a :class:`disk_ops.DISKDetector`, on its device and in its dtype.

    Args:
        detector: at one scale or several; put it into evaluation mode yourself, or use :func:`evaluation_mode`.
        n: at most this many features per image, the best ones; ``None``: all.
        window_size: odd width of the non-maximum suppression window.
        score_threshold: features score above it; below 0, the network would rather reject those.
    """

    def __init__(
        self,
        detector: DISKDetector | MultiscaleDetector,
        n: int | None = 2048,
        window_size: int = 5,
        score_threshold: float = 0.0,
    ) -> None:
        self.detector, self.n, self.window_size = detector, n, window_size
        self.score_threshold = score_threshold

    def __call__(
        self,
        image: Tensor,  # [3, H, W]
        mask: Tensor | None = None,  # [1, H, W] bool
    ) -> Features:
        """Return the features of an image; with a mask only those in it."""
        weight = next(self.detector.parameters())
        with torch.inference_mode():
            features = self.detector(
                image.to(weight.device, weight.dtype)[None],
                n=self.n,
                window_size=self.window_size,
                score_threshold=self.score_threshold,
                mask=None if mask is None else mask.to(weight.device)[None],
            )[0]
        return Features(features.keypoints.cpu(), features.descriptors.cpu(), features.detection_scores.cpu())


class CellExtractor:
    """Extract features by the policy that the detector is trained by, without chance: at most one for each grid cell.

    A cell proposes its highest pixel, which is a feature if its score is above 0.

    Args:
        detector: in evaluation mode; is used on its device and in its dtype.
        n: at most this many features per image, those with the best scores; ``None``: all.
        cell: side of a grid cell in pixels.
    """

    def __init__(self, detector: DISKDetector, n: int | None = 2048, cell: int = 8) -> None:
        self.detector, self.n, self.cell = detector, n, cell

    def __call__(
        self,
        image: Tensor,  # [3, H, W]
    ) -> Features:
        """Return the features of an image."""
        weight = next(self.detector.parameters())
        with torch.inference_mode():
            heatmap, read = self.detector.heatmap_and_reader(image.to(weight.device, weight.dtype)[None], None)
            return best_of_cells(heatmap, read, self.n, self.cell, self.detector.subpixel)


def best_of_cells(
    heatmap: Tensor,  # [1, 1, H, W]
    read: Reader,
    n: int | None,
    cell: int,
    subpixel: bool = False,
) -> Features:
    """The features of :class:`CellExtractor` from the network's maps of an image."""
    samples = sample_grid(heatmap, cell, mode="argmax")
    keypoints = samples.keypoints[samples.accepted]  # [N, 2]
    scores = heatmap[0, 0, keypoints[:, 1], keypoints[:, 0]]
    best = scores.argsort(descending=True, stable=True)[:n]
    return _described(heatmap, keypoints[best], scores[best], read, subpixel)


def best_of_windows(
    heatmap: Tensor,  # [1, 1, H, W]
    read: Reader,
    n: int | None,
    window_size: int,
    subpixel: bool = False,
) -> Features:
    """The features of :class:`DetectorExtractor` from the network's maps of an image."""
    found = find_maxima(heatmap, n, window_size, score_threshold=0.0, keep=None, border=None)
    return _described(heatmap, found.keypoints[found.valid], found.scores[found.valid], read, subpixel)


def _described(
    heatmap: Tensor,  # [1, 1, H, W]
    keypoints: Tensor,  # [N, 2] int64
    scores: Tensor,  # [N]
    read: Reader,
    subpixel: bool,
) -> Features:
    places = refine_keypoints(heatmap, keypoints[None])[0] if subpixel else keypoints.to(scores.dtype)
    return Features(places.cpu(), read(keypoints[None])[0].cpu(), scores.cpu())


class Sift:
    """Extract SIFT features with OpenCV.

    Args:
        n: at most this many features per image, those of the highest contrast, which is their score. As usual with
            SIFT, a point with several orientations counts as several features.
    """

    # OpenCV doubles the image by interpolation about pixel corners and halves the coordinates about pixel centres, so
    # a blob around (x, y) is found at (x + 0.25, y + 0.25).
    SHIFT = 0.25

    def __init__(self, n: int = 2048) -> None:
        self.n = n

    def __call__(
        self,
        image: Tensor,  # [3, H, W]
    ) -> Features:
        """Return the features of an image, which are found in its grey values."""
        pixels = (image.cpu().float() * 255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
        grey = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY)
        found, described = cv2.SIFT_create(self.n).detectAndCompute(grey, None)
        if described is None:
            return Features(torch.empty(0, 2), torch.empty(0, 128), torch.empty(0))
        points = np.array([keypoint.pt for keypoint in found], dtype=np.float32) - np.float32(self.SHIFT)
        scores = torch.tensor([keypoint.response for keypoint in found])
        order = scores.argsort(descending=True, stable=True)[: self.n]  # equal contrasts could exceed n
        descriptors = self.normalize(torch.from_numpy(described))
        return Features(torch.from_numpy(points)[order], descriptors[order], scores[order])

    def normalize(
        self,
        descriptors: Tensor,  # [N, 128] as OpenCV gives them
    ) -> Tensor:
        """Return the descriptors ``[N, 128]`` to match."""
        return descriptors


class RootSift(Sift):
    """Extract SIFT features with OpenCV and normalise them as RootSIFT (Arandjelović and Zisserman, 2012)."""

    def normalize(
        self,
        descriptors: Tensor,  # [N, 128]
    ) -> Tensor:
        """Return the square roots of descriptors ``[N, 128]`` that sum to 1, so that they have unit length."""
        return (descriptors / descriptors.sum(1, keepdim=True).clamp(min=1e-12)).sqrt()


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and each of its parts back into its own mode at the end."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@dataclass(frozen=True)
class Matcher:
    """Match features by mutual nearest neighbours, optionally after the ratio test.

    Args:
        ratio: keep matches whose distance is at most ``ratio`` times that of the second best, both ways; ``None``: all.
        device: where the descriptors are compared.
    """

    ratio: float | None = None
    device: str | torch.device = "cpu"

    def __call__(self, features1: Features, features2: Features) -> Tensor:
        """Return pairs of rows ``[K, 2]`` int64 on the CPU. Descriptors that hold NaN match nothing."""
        _, pairs = MutualNearestNeighbor(self.ratio)(
            features1.descriptors.to(self.device), features2.descriptors.to(self.device)
        )
        return pairs.cpu()


def mutual_matches(features1: Features, features2: Features) -> Tensor:
    """Mutual nearest neighbours: pairs of rows ``[K, 2]`` int64. Descriptors that hold NaN match nothing."""
    return Matcher()(features1, features2)
