"""The detector in the forms of ``kornia.feature``: a whole local feature, or its detector and descriptor halves."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from disk_ops.detector import DISKDetector
from disk_ops.geometry import check_points, laf_centres, sample_descriptors
from disk_ops.multiscale import MultiscaleDetector
from disk_ops.ops.nms import check_maxima


class DISKLocalFeature(nn.Module):
    """A local feature for ``kornia.feature.LocalFeatureMatcher`` and what builds on it (``ImageStitcher``, ...).

    Args:
        detector: the DISK detector, at one scale or several.
        n: at most this many features per image.
        window_size: odd width of the non-maximum suppression window.
        score_threshold: features score strictly above it.
        border: distance from the edges of the image; ``None``: ``window_size // 2``.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type, here or in a call; the message names it.

    Example:
        >>> import kornia.feature as KF, torch
        >>> from disk_ops import MutualNearestNeighbor
        >>> feature = DISKLocalFeature(DISKDetector.from_pretrained(), n=256)
        >>> matcher = KF.LocalFeatureMatcher(feature, MutualNearestNeighbor())
        >>> image = torch.rand(1, 1, 64, 64)
        >>> sorted(matcher({"image0": image, "image1": image}))[:2]
        ['batch_indexes', 'confidence']
    """

    _takes_several_scales = True

    def __init__(
        self,
        detector: DISKDetector | MultiscaleDetector,
        n: int | None = 2048,
        window_size: int = 5,
        score_threshold: float = 0.0,
        border: int | None = None,
    ) -> None:
        super().__init__()
        if not self._takes_several_scales and isinstance(detector, MultiscaleDetector):
            raise TypeError("detector must be a DISKDetector, of a single scale, got MultiscaleDetector")
        check_maxima(n, window_size, score_threshold, border)
        self.disk = detector
        self.n, self.window_size, self.score_threshold, self.border = n, window_size, score_threshold, border

    def forward(
        self,
        img: Tensor,  # [B, C, H, W]
        mask: Tensor | None = None,  # [B, 1, H, W]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return lafs ``[B, N, 2, 3]``, responses ``[B, N, 1]``, descriptors ``[B, N, D]``."""
        return self.disk.forward_laf(img, mask, self.n, self.window_size, self.score_threshold, self.border)


class DISKKeypoints(DISKLocalFeature):
    """The detecting half, first argument of ``kornia.feature.LocalFeature``; arguments of :class:`DISKLocalFeature`.

    It hands the dense descriptors of the image it has seen to the :class:`DISKDescriptors` made of it. The detector is
    one of a single scale.

    Example:
        >>> import kornia.feature as KF, torch
        >>> keypoints = DISKKeypoints(DISKDetector.from_pretrained(), n=16)
        >>> feature = KF.LocalFeature(keypoints, DISKDescriptors(keypoints))
        >>> feature(torch.rand(1, 3, 64, 64))[2].shape
        torch.Size([1, 16, 128])
    """

    _takes_several_scales = False
    _handed_over: _HandedOver | None = None

    def forward(  # type: ignore[override]
        self,
        img: Tensor,  # [B, C, H, W]
        mask: Tensor | None = None,  # [B, 1, H, W]
    ) -> tuple[Tensor, Tensor]:
        """Return lafs ``[B, N, 2, 3]`` and responses ``[B, N]``."""
        lafs, responses, dense = cast(DISKDetector, self.disk).detect_with_dense_descriptors(
            img, mask, self.n, self.window_size, self.score_threshold, self.border
        )
        self._handed_over = _HandedOver(weakref.ref(img), dense)
        return lafs, responses

    def take_dense_descriptors(
        self,
        img: Tensor,  # [B, C, H, W]
    ) -> Tensor | None:
        """Return the dense descriptors ``[B, D, H, W]`` if the last image is this one, and forget them either way."""
        handed_over, self._handed_over = self._handed_over, None
        return handed_over.dense if handed_over is not None and handed_over.img() is img else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_handed_over"}


class DISKDescriptors(nn.Module):
    """The describing half, second argument of ``kornia.feature.LocalFeature``.

    It describes the image that its :class:`DISKKeypoints` saw last from the same network pass (and under the same mask,
    which kornia doesn't pass on), and any other image by a pass of its own.

    Args:
        keypoints: the detecting half.

    Raises:
        ValueError, TypeError: a call's argument has a wrong shape, dtype or device; the message names it.
    """

    def __init__(self, keypoints: DISKKeypoints) -> None:
        super().__init__()
        self.keypoints = keypoints

    def forward(
        self,
        img: Tensor,  # [B, C, H, W]
        lafs: Tensor,  # [B, N, 2, 3]
    ) -> Tensor:
        """Return descriptors ``[B, N, D]``."""
        check_points(lafs, len(img), frames=True, name="lafs")
        dense = self.keypoints.take_dense_descriptors(img)
        if dense is None:
            return cast(DISKDetector, self.keypoints.disk).describe(img, lafs)
        return sample_descriptors(dense, laf_centres(lafs))


class _HandedOver(NamedTuple):
    img: weakref.ref[Tensor]
    dense: Tensor  # [B, D, H, W]
