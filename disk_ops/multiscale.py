"""MultiscaleDetector: features at several sizes of the image, for images that are zoomed against each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from disk_ops._images import as_mask, check_image_size, check_images, check_sizes, valid_pixels
from disk_ops.detector import DISKDetector
from disk_ops.features import DISKFeatures, PaddedFeatures
from disk_ops.geometry import lafs_from_keypoints
from disk_ops.model import UNet
from disk_ops.ops._arguments import check_positive
from disk_ops.ops._dtypes import at_least_float32
from disk_ops.ops.nms import check_maxima

SCALES = (1.0, 0.5, 0.25)
"""Octaves; together they have 1.31 times the pixels of the image. In finer steps places are found several times."""


class MultiscaleDetector(nn.Module):
    r"""Detect at several sizes of an image and keep the features with the best scores.

    DISK describes what it sees in a window of fixed size, so it finds few matches between images that are zoomed
    against each other by more than about 1.5. At scale :math:`s` an image of :math:`W \times H` pixels is resized to
    :math:`W' = \mathrm{round}(s W), H' = \mathrm{round}(s H)` (bilinear, antialiased); a keypoint :math:`x'` of it is
    :math:`x = (x' + 1/2)\, W / W' - 1/2` in the image. The features of all scales are ranked together, and of one place
    there may be one at each scale.

    Calls and results are those of :class:`disk_ops.DISKDetector`, except that keypoints lie between pixels, and that
    local affine frames have the scale :math:`1/s`. A released implementation of several scales doesn't exist; other
    features do the same (D2-Net, R2D2).

    Args:
        detector: is called on each of the resized images, with what it was made with (``subpixel``, ``norm``).
        scales: sizes of the resized images as parts of the image's; above 1 it is enlarged.

    Raises:
        ValueError, TypeError: an argument, here or in a call, has a wrong shape, dtype, device or value; the message
            names it.

    Example:
        >>> detector = MultiscaleDetector(DISKDetector.from_pretrained(subpixel=True))
        >>> features = detector(torch.rand(1, 3, 96, 128), n=64)
        >>> features[0].descriptors.shape[1]
        128
    """

    def __init__(self, detector: DISKDetector, scales: Sequence[float] = SCALES) -> None:
        super().__init__()
        if not isinstance(detector, DISKDetector):
            raise TypeError(f"detector must be a DISKDetector, got {type(detector).__name__}")
        self.detector, self.scales = detector, check_scales(scales)

    def forward(
        self,
        images: Tensor,  # [B, C, H, W]
        n: int | None = None,
        window_size: int = 5,
        score_threshold: float = 0.0,
        pad_if_not_divisible: bool = True,
        mask: Tensor | None = None,  # [B, 1, H, W]
        border: int | None = None,
        image_size: Tensor | None = None,  # [B, 2] (width, height)
        max_memory: float | None = None,
        statistics: Literal["exact", "sampled"] = "exact",
        progress: Callable[[int, int], None] | None = None,
    ) -> list[DISKFeatures]:
        """Detect and describe features: see :meth:`disk_ops.DISKDetector.forward`, whose arguments these are.

        Args:
            images: shape :math:`(B, C, H, W)` in [0, 1], C 1 or 3, in the detector's dtype.
            n: at most this many features per image, the best of all scales; ``None``: all.
            window_size: odd width of the non-maximum suppression window, in pixels of the resized image.
            score_threshold: features score strictly above it.
            pad_if_not_divisible: False raises ``ValueError`` for images with sizes that are no multiples of 16.
            mask: features come only from pixels where it is True (or above 0), shape :math:`(B, 1, H, W)`.
            border: features keep this distance from the edges of the image, in its pixels; ``None``:
                ``window_size // 2`` pixels of the resized image.
            image_size: width and height of each image in a padded batch, shape :math:`(B, 2)`.
            max_memory: GB that may be taken at any scale besides images and features.
            statistics: of the norms, where an image is computed in tiles.
            progress: is called with the number of tiles done, and of all, of one scale.

        Returns:
            The features of each image, best score first.
        """
        self._check(images, n, window_size, score_threshold, border)
        if not pad_if_not_divisible:
            check_sizes(images, 16, "; pad_if_not_divisible=True pads them")
        found = []
        for level in self._levels(images, mask, border, image_size):
            features = self.detector(
                *(level.images, n, window_size, score_threshold, True, level.mask, level.border, level.image_size),
                *(max_memory, statistics, progress),
            )
            found.append((level, features))
        if not len(images):
            return []
        return _best([(level, PaddedFeatures.of(features)) for level, features in found], images, n)[0].unpad()

    def forward_padded(
        self,
        images: Tensor,  # [B, C, H, W]
        n: int | None,
        window_size: int = 5,
        score_threshold: float = 0.0,
        mask: Tensor | None = None,  # [B, 1, H, W]
        border: int | None = None,
        image_size: Tensor | None = None,  # [B, 2] (width, height)
    ) -> PaddedFeatures:
        """Detect and describe features in ``n`` columns: see :meth:`disk_ops.DISKDetector.forward_padded`."""
        return self._padded(images, n, window_size, score_threshold, mask, border, image_size)[0]

    def forward_laf(
        self,
        img: Tensor,  # [B, C, H, W]
        mask: Tensor | None = None,  # [B, 1, H, W]
        n: int | None = None,
        window_size: int = 5,
        score_threshold: float = 0.0,
        border: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Detect and describe features as kornia's local affine frames, upright, of scale :math:`1/s`.

        Args are those of :meth:`forward`.

        Returns:
            lafs :math:`(B, N, 2, 3)`, responses :math:`(B, N, 1)`, descriptors :math:`(B, N, D)`. Where an image has
            fewer features, all three are zero.
        """
        features, zoom = self._padded(img, n, window_size, score_threshold, mask, border, None)
        lafs = lafs_from_keypoints(features.keypoints, features.valid, zoom)
        return lafs, features.scores[..., None], features.descriptors

    def extra_repr(self) -> str:
        """The scales, where the module is printed."""
        return f"scales={self.scales}"

    def _padded(
        self,
        images: Tensor,
        n: int | None,
        window_size: int,
        score_threshold: float,
        mask: Tensor | None,
        border: int | None,
        image_size: Tensor | None,
    ) -> tuple[PaddedFeatures, Tensor]:
        """Features in ``n`` columns, and how many pixels of the image one of theirs is: ``[B, n]``."""
        self._check(images, n, window_size, score_threshold, border)
        found = []
        for level in self._levels(images, mask, border, image_size):
            features = self.detector.forward_padded(
                *(level.images, n, window_size, score_threshold, level.mask, level.border, level.image_size)
            )
            found.append((level, features))
        return _best(found, images, n)

    def _check(
        self, images: Tensor, n: int | None, window_size: int, score_threshold: float, border: int | None
    ) -> None:
        unet = self.detector.unet
        check_images(images, next(self.parameters(), None), unet.in_channels if isinstance(unet, UNet) else 3)
        check_maxima(n, window_size, score_threshold, border)

    def _levels(
        self,
        images: Tensor,  # [B, C, H, W]
        mask: Tensor | None,  # [B, 1, H, W]
        border: int | None,
        image_size: Tensor | None,  # [B, 2] (width, height)
    ) -> Iterator[_Level]:
        """The images at each scale, one at a time."""
        mask = None if mask is None else as_mask(mask, images)
        if image_size is not None:
            check_image_size(image_size, images)
        seen = valid_pixels(images, mask, image_size) if self.detector.norm == "valid" else None
        for scale in self.scales:
            yield _level(images, scale, mask, border, image_size, seen)


def at_scales(detector: DISKDetector, scales: Sequence[float]) -> DISKDetector | MultiscaleDetector:
    """The detector itself where the only scale is 1."""
    return detector if tuple(scales) == (1.0,) else MultiscaleDetector(detector, scales)


def check_scales(scales: Sequence[float]) -> tuple[float, ...]:
    """The scales as a tuple.

    Raises:
        ValueError, TypeError: they are no different positive numbers; the message says what came.
    """
    if isinstance(scales, str) or not isinstance(scales, Sequence):
        raise TypeError(f"scales must be a sequence of numbers, got {type(scales).__name__} {scales!r}")
    for scale in scales:
        check_positive("each of scales", scale)
    if not scales or len(set(scales)) < len(scales):
        raise ValueError(f"scales must be one or more different numbers, got {list(scales)}")
    return tuple(map(float, scales))


class _Level(NamedTuple):
    """A batch of images at one scale."""

    images: Tensor  # [B, C, h, w]
    mask: Tensor | None  # [B, 1, h, w] bool
    border: int | None
    image_size: Tensor | None  # [B, 2] (width, height)
    zoom: tuple[float, float]  # pixels of the image per pixel of this level, x and y


def _level(
    images: Tensor,  # [B, C, H, W]
    scale: float,
    mask: Tensor | None,  # [B, 1, H, W] bool
    border: int | None,
    image_size: Tensor | None,  # [B, 2] (width, height)
    seen: Tensor | None,  # [B, 1, H, W] bool
) -> _Level:
    """Shrink or enlarge the images, and what comes with them; pixels that are not ``seen`` have no influence."""
    height, width = images.shape[-2:]
    h, w = max(1, round(height * scale)), max(1, round(width * scale))
    zoom = (width / w, height / h)
    if (h, w) == (height, width):
        return _Level(images, mask, border, image_size, zoom)
    if mask is not None:  # the pixel of the image in which a pixel's centre lies
        mask = F.interpolate(mask.to(torch.uint8), (h, w), mode="nearest-exact").bool()
    if border is not None:  # (x' + 1/2) * zoom - 1/2 >= border
        border = max(0, math.ceil((border + 0.5) / min(zoom) - 0.5))
    if image_size is not None:
        columns, rows = image_size.to(torch.int64).unbind(1)  # products don't fit into small integers
        image_size = torch.stack([columns * w // width, rows * h // height], 1).clamp(min=1)
    if seen is None or not len(images):
        return _Level(_resize(images, (h, w)), mask, border, image_size, zoom)
    weight = _resize(seen.to(images.dtype), (h, w))
    small = _resize(torch.where(seen, images, 0), (h, w)) / torch.where(weight > 0, weight, 1)
    return _Level(small, mask, border, image_size, zoom)


def _resize(
    images: Tensor,  # [B, C, H, W]
    size: tuple[int, int],
) -> Tensor:  # [B, C, h, w]
    if not len(images):
        return images.new_zeros(*images.shape[:2], *size)
    pixels = images.to(at_least_float32(images.dtype))  # there is no antialiasing in half precision on the CPU
    return F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=True).to(images.dtype)


def _in_image(level: _Level, features: PaddedFeatures, size: torch.Size) -> Tensor:  # [B, N, 2]
    """Where the features of a level lie in the images, whose height and width are given."""
    if level.zoom == (1.0, 1.0):
        return features.keypoints
    axes = zip(features.keypoints.unbind(-1), level.zoom, reversed(size), strict=True)
    places = torch.stack([((along + 0.5) * zoom - 0.5).clamp(0, edge - 1) for along, zoom, edge in axes], -1)
    return torch.where(features.valid[..., None], places, 0)


def _best(
    found: Sequence[tuple[_Level, PaddedFeatures]],
    images: Tensor,  # [B, C, H, W]
    n: int | None,
) -> tuple[PaddedFeatures, Tensor]:
    """The best features of all levels, at their places in the images, and each one's zoom ``[B, n]``."""
    places = [_in_image(level, features, images.shape[-2:]) for level, features in found]
    zooms = [torch.full_like(features.scores, math.sqrt(math.prod(level.zoom))) for level, features in found]
    _, scores, descriptors, valid = (torch.cat(parts, 1) for parts in zip(*(f for _, f in found), strict=True))
    ranks = torch.where(valid, scores, -math.inf).argsort(dim=1, descending=True, stable=True)
    columns = n if n is not None else int(valid.sum(1).max()) if valid.numel() else 0
    best = ranks[:, :columns]
    rows = best[..., None]
    chosen = PaddedFeatures(
        torch.cat(places, 1).gather(1, rows.expand(-1, -1, 2)),
        scores.gather(1, best),
        descriptors.gather(1, rows.expand(-1, -1, descriptors.shape[-1])),
        valid.gather(1, best),
    )
    return chosen, torch.cat(zooms, 1).gather(1, best)
