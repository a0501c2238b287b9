"""The detector in the forms of ``kornia.feature``: a whole local feature, or its detector and descriptor halves."""

from __future__ import annotations

from torch import Tensor, nn

from disk_ops.detector import DISKDetector


class DISKLocalFeature(nn.Module):
    """A local feature for ``kornia.feature.LocalFeatureMatcher`` and what builds on it (``ImageStitcher``, ...).

    Args:
        detector: the DISK detector.
        n: at most this many features per image.
        window_size: odd width of the non-maximum suppression window.
        score_threshold: features score strictly above it.
        border: distance from the edges of the image; ``None``: ``window_size // 2``.

    Example:
        >>> import kornia.feature as KF, torch
        >>> from disk_ops import MutualNearestNeighbor
        >>> feature = DISKLocalFeature(DISKDetector.from_pretrained(), n=256)
        >>> matcher = KF.LocalFeatureMatcher(feature, MutualNearestNeighbor())
        >>> image = torch.rand(1, 1, 64, 64)
        >>> sorted(matcher({"image0": image, "image1": image}))[:2]
        ['batch_indexes', 'confidence']
    """

    def __init__(
        self,
        detector: DISKDetector,
        n: int | None = 2048,
        window_size: int = 5,
        score_threshold: float = 0.0,
        border: int | None = None,
    ) -> None:
        super().__init__()
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
    """The detecting half, first argument of ``kornia.feature.LocalFeature``; arguments of :class:`DISKLocalFeature`."""

    def forward(  # type: ignore[override]
        self,
        img: Tensor,  # [B, C, H, W]
        mask: Tensor | None = None,  # [B, 1, H, W]
    ) -> tuple[Tensor, Tensor]:
        """Return lafs ``[B, N, 2, 3]`` and responses ``[B, N]``."""
        return self.disk.detect(img, mask, self.n, self.window_size, self.score_threshold, self.border)


class DISKDescriptors(nn.Module):
    """The describing half, second argument of ``kornia.feature.LocalFeature``.

    Given the detector of :class:`DISKKeypoints`, it reuses that one's network pass.
    """

    def __init__(self, detector: DISKDetector) -> None:
        super().__init__()
        self.disk = detector

    def forward(
        self,
        img: Tensor,  # [B, C, H, W]
        lafs: Tensor,  # [B, N, 2, 3]
    ) -> Tensor:
        """Return descriptors ``[B, N, D]``."""
        return self.disk.describe(img, lafs)
