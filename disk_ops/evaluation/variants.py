"""Ways to detect keypoints with one network, whose maps of an image serve all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from disk_ops.detector import DISKDetector
from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Features, best_of_cells, best_of_windows
from disk_ops.evaluation.methods import Method, cell_method, detector_method
from disk_ops.io.cache import ImageCache
from disk_ops.ops.sampling import MOST_CELL
from disk_ops.tiled.memory import limit_for

_MEMORY_MB = 512  # of the features of images that were used last


@dataclass(frozen=True)
class Detection:
    """A way to detect keypoints in a heatmap."""

    kind: Literal["cell", "window"]
    size: int  # of a grid cell, or of the window of non-maximum suppression, in pixels

    def __str__(self) -> str:
        """As tables show it."""
        return f"one per cell {self.size}" if self.kind == "cell" else f"NMS {self.size}"

    def method(self, detector: DISKDetector, name: str) -> Method:
        """The features that a detector finds in this way."""
        make = cell_method if self.kind == "cell" else detector_method
        return make(detector, name, self.size)


def detections(cells: Iterable[int], windows: Iterable[int]) -> list[Detection]:
    """The ways to detect that were asked for, each once.

    Args:
        cells: sides of grid cells, in pixels.
        windows: odd widths of windows of non-maximum suppression.

    Raises:
        EvaluationError: there is none, or a size that can't be.
    """
    chosen = [
        *(Detection("cell", size) for size in dict.fromkeys(cells)),
        *(Detection("window", size) for size in dict.fromkeys(windows)),
    ]
    if not chosen:
        raise EvaluationError("nothing to compare: neither --cells nor --windows names a size")
    for detection in chosen:
        if detection.kind == "cell" and not 1 <= detection.size <= MOST_CELL:
            raise EvaluationError(f"--cells must be from 1 to {MOST_CELL} pixels, got {detection.size}")
        if detection.kind == "window" and (detection.size < 1 or detection.size % 2 == 0):
            raise EvaluationError(f"--windows must be odd, got {detection.size}")
    return chosen


class Variants:
    """The features of an image by several ways to detect, from one pass of the network.

    Args:
        detector: in evaluation mode; is used on its device and in its dtype.
        chosen: ways to detect.
    """

    def __init__(self, detector: DISKDetector, chosen: Sequence[Detection]) -> None:
        self.detector, self.detections = detector, list(chosen)
        self._memory = ImageCache(_MEMORY_MB)

    def method(self, detection: Detection, name: str) -> Method:
        """One of them as a method, whose features are those of `Detection.method`."""
        alone = detection.method(self.detector, name)
        if len(self.detections) < 2:
            return alone
        number = self.detections.index(detection)

        @torch.inference_mode()  # for limit_for, too: gradients would need the whole image
        def extract(image: Tensor, n: int) -> Features:
            weight = next(self.detector.parameters())
            batch = image.to(weight.device, weight.dtype)[None]
            if limit_for(batch, self.detector.unet, self.detector.norm, None) is not None:
                return alone.extract(image, n)  # in tiles, which keep no maps
            digest = hashlib.sha256(image.contiguous().numpy().tobytes()).digest()
            arrays = self._memory.get((digest, tuple(image.shape), n), lambda: self._all(batch, n))
            return Features(*(torch.tensor(array) for array in arrays[3 * number : 3 * number + 3]))

        return replace(alone, function=extract, family=f"variants {id(self)}")

    def _all(
        self,
        images: Tensor,  # [1, 3, H, W]
        n: int,
    ) -> tuple[np.ndarray, ...]:
        """Keypoints, descriptors and scores of each way to detect."""
        heatmap, read = self.detector.heatmap_and_reader(images, None)
        found: list[np.ndarray] = []
        for detection in self.detections:
            best = best_of_cells if detection.kind == "cell" else best_of_windows
            features = best(heatmap, read, n, detection.size, self.detector.subpixel)
            assert features.scores is not None
            found += [part.numpy() for part in (features.keypoints, features.descriptors, features.scores)]
        return tuple(found)
