"""What the detector returns: features of one image, or of a batch in fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

if TYPE_CHECKING:
    import cv2


@dataclass
class DISKFeatures:
    """Keypoints, descriptors and scores of one image, in the form of ``kornia.feature.DISKFeatures``.

    Attributes:
        keypoints: ``[N, 2]`` pixels in xy order, integer at pixel centres, never in half precision.
        descriptors: ``[N, D]``, L2-normalised.
        detection_scores: ``[N]`` heatmap values (logits) at the keypoints.
    """

    keypoints: Tensor  # [N, 2]
    descriptors: Tensor  # [N, D]
    detection_scores: Tensor  # [N]

    @property
    def n(self) -> int:
        """Number of features."""
        return self.keypoints.shape[0]

    @property
    def device(self) -> torch.device:
        """Device of the features."""
        return self.keypoints.device

    @property
    def x(self) -> Tensor:
        """Horizontal coordinates, ``[N]``."""
        return self.keypoints[:, 0]

    @property
    def y(self) -> Tensor:
        """Vertical coordinates, ``[N]``."""
        return self.keypoints[:, 1]

    def to(self, *args: Any, **kwargs: Any) -> DISKFeatures:
        """Move or convert all tensors as ``torch.Tensor.to`` does, but keep keypoints out of half precision.

        float16 holds no odd integer above 2048 and bfloat16 none above 256, so such keypoints would lose their pixels.
        """
        keypoints = self.keypoints.to(*args, **kwargs)
        if keypoints.dtype in (torch.float16, torch.bfloat16):
            keypoints = self.keypoints.to(keypoints.device)
        return DISKFeatures(keypoints, self.descriptors.to(*args, **kwargs), self.detection_scores.to(*args, **kwargs))

    def numpy(self) -> NumpyFeatures:
        """Keypoints, descriptors and scores as float32 arrays, as OpenCV and hloc take them."""
        tensors = (self.keypoints, self.descriptors, self.detection_scores)
        return NumpyFeatures(*(tensor.detach().float().cpu().numpy() for tensor in tensors))

    def to_cv_keypoints(self, size: float = 1.0) -> list[cv2.KeyPoint]:
        """The keypoints for OpenCV, in the same order.

        Args:
            size: diameter of each, in pixels: DISK's keypoints have no scale, and of those of several scales (
                :class:`disk_ops.MultiscaleDetector`) only local affine frames tell it.

        Returns:
            ``pt`` (x, y) with pixel centres at integers, as OpenCV has them; ``response`` is the score; ``angle`` is
            -1, as there is no orientation.
        """
        import cv2

        points, _, scores = self.numpy()
        return [
            cv2.KeyPoint(x, y, size, -1, score) for (x, y), score in zip(points.tolist(), scores.tolist(), strict=True)
        ]


class NumpyFeatures(NamedTuple):
    """Features of one image outside of PyTorch."""

    keypoints: npt.NDArray[np.float32]  # [N, 2] xy pixels, integer at pixel centres
    descriptors: npt.NDArray[np.float32]  # [N, D] L2-normalised
    scores: npt.NDArray[np.float32]  # [N]


class SampledFeatures(NamedTuple):
    """Features of one image drawn by the training policy: those whose proposals were accepted."""

    keypoints: Tensor  # [N, 2] xy pixels
    descriptors: Tensor  # [N, D] L2-normalised
    logp: Tensor  # [N] log-probability of the proposal and its acceptance

    @property
    def n(self) -> int:
        """Number of features."""
        return self.keypoints.shape[0]


class PaddedFeatures(NamedTuple):
    """Features of a batch in fixed shapes; entries that are not ``valid`` are all zero."""

    keypoints: Tensor  # [B, n, 2] xy pixels
    scores: Tensor  # [B, n] heatmap values
    descriptors: Tensor  # [B, n, D] L2-normalised
    valid: Tensor  # [B, n] bool

    @classmethod
    def of(cls, features: Sequence[DISKFeatures]) -> PaddedFeatures:
        """The features of one image or more, in as many columns as the richest has."""
        keypoints, scores, descriptors = (
            pad_sequence([getattr(each, name) for each in features], batch_first=True)
            for name in ("keypoints", "detection_scores", "descriptors")
        )
        counts = torch.tensor([each.n for each in features], device=scores.device)
        return cls(
            keypoints, scores, descriptors, torch.arange(scores.shape[1], device=scores.device) < counts[:, None]
        )

    def unpad(self) -> list[DISKFeatures]:
        """Return the valid features of each image."""
        return [
            DISKFeatures(keypoints[valid], descriptors[valid], scores[valid])
            for keypoints, scores, descriptors, valid in zip(*self, strict=True)
        ]
