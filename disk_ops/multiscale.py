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
"""Octaves; together they have 1.31 times the pixels of the image. In finer steps neighbours compete for matches."""

LARGEST_SCALE = 16.0  # nothing more is seen in images that are enlarged further


class MultiscaleDetector(nn.Module):
    r"""Detect at several sizes of an image and keep the features with the best scores.

    DISK describes what it sees in a window of fixed size, so it finds few matches between images that are zoomed
    much against each other. At scale :math:`s` an image of :math:`W \times H` pixels is resized to
    :math:`W' = \max(1, \mathrm{round}(s W)), H' = \max(1, \mathrm{round}(s H))` (bilinear, antialiased); a keypoint
    :math:`x'` of it is :math:`x = (x' + 1/2)\, W / W' - 1/2` in the image, or on its edge where that is beyond. The
    features of all sizes are ranked together, and of one place there may be one of each size. Those of small sizes are
    found in blur and noise, too, but are less exact. Where images differ little in zoom and ``n`` takes nearly all
    features, a single scale is better.

    :meth:`forward`, :meth:`forward_padded` and :meth:`forward_laf` are those of :class:`disk_ops.DISKDetector`, except
    that keypoints lie between pixels, and that local affine frames have a scale. There is no released DISK at several
    scales; D2-Net and R2D2 do the same with their features.

    With ``norm="valid"`` nothing of what is masked has an influence, as at a single scale, but an image in a padded
    batch is resized with it, to a size that may be another one than alone.

    Args:
        detector: is called on each of the resized images, with what it was made with (``subpixel``, ``norm``).
        scales: sizes of the resized images as parts of the image's, at most 16; above 1 it is enlarged. Scales that
            give the same whole number of pixels count once.

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
        if isinstance(detector, MultiscaleDetector) or not hasattr(detector, "forward_padded"):
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
            mask: features come only from pixels where it is True (or above 0), shape :math:`(B, 1, H, W)`; pixels
                of a resized image count as the one in which their centre lies.
            border: features keep this distance from the edges of the image, in its pixels (with ``subpixel`` up to
                half a pixel of the resized image less); ``None``: ``window_size // 2`` pixels of the resized image.
            image_size: width and height of each image in a padded batch, shape :math:`(B, 2)`.
            max_memory: GB that may be taken at any scale besides images, resized or not, and features.
            statistics: of the norms, where an image is computed in tiles.
            progress: in tiles, is called with the number of tiles done, and of all, of one scale after the other.

        Returns:
            The features of each image, best score first.
        """
        self._check(images, n, window_size, score_threshold, border)
        if not pad_if_not_divisible:
            stride = self.unet.stride if isinstance(self.unet, UNet) else 16
            check_sizes(images, stride, "; pad_if_not_divisible=True pads them")
        found = []
        for level in self._levels(images, mask, border, image_size):
            features = self.detector(
                *(level.images, n, window_size, score_threshold, True, level.mask, level.border, level.image_size),
                *(max_memory, statistics, progress),
            )
            if features:
                found.append(_in_image(PaddedFeatures.of(features), level.zoom, images, mask, image_size))
        return _best(found, n)[0].unpad() if found else []

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
        r"""Detect and describe features as kornia's local affine frames, upright.

        Their scale is that of a pixel of the resized image, :math:`\sqrt{W / W' \cdot H / H'}`, about :math:`1/s`.

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
            columns = n if n is None else min(n, level.images.shape[-2:].numel())
            features = self.detector.forward_padded(
                *(level.images, columns, window_size, score_threshold, level.mask, level.border, level.image_size)
            )
            found.append(_in_image(features, level.zoom, images, mask, image_size))
        return _best(found, n)

    @property
    def unet(self) -> nn.Module:
        """The detector's network."""
        return self.detector.unet

    def _check(
        self, images: Tensor, n: int | None, window_size: int, score_threshold: float, border: int | None
    ) -> None:
        channels = self.unet.in_channels if isinstance(self.unet, UNet) else 3
        check_images(images, next(self.parameters(), None), channels)
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
        height, width = images.shape[-2:]
        sizes = [(max(1, round(height * scale)), max(1, round(width * scale))) for scale in self.scales]
        for size in dict.fromkeys(sizes):
            yield _level(images, size, mask, border, image_size, seen)


def at_scales(detector: DISKDetector, scales: Sequence[float]) -> DISKDetector | MultiscaleDetector:
    """The detector itself where the only scale is 1."""
    return detector if tuple(scales) == (1.0,) else MultiscaleDetector(detector, scales)


def check_scales(scales: Sequence[float]) -> tuple[float, ...]:
    """The scales as a tuple.

    Raises:
        ValueError, TypeError: they are no different positive numbers up to 16; the message says what came.
    """
    if isinstance(scales, str | bytes) or not isinstance(scales, Sequence):
        raise TypeError(f"scales must be a sequence of numbers, got {type(scales).__name__} {scales!r}")
    for scale in scales:
        check_positive("each of scales", scale)
        if scale > LARGEST_SCALE:
            raise ValueError(f"each of scales must be at most {LARGEST_SCALE:g}, got {scale}")
    numbers = tuple(map(float, scales))
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"scales must be one or more different numbers, got {list(scales)}")
    return numbers


class _Level(NamedTuple):
    """A batch of images at one scale."""

    images: Tensor  # [B, C, h, w]
    mask: Tensor | None  # [B, 1, h, w] bool
    border: int | None
    image_size: Tensor | None  # [B, 2] (width, height)
    zoom: tuple[float, float]  # pixels of the image per pixel of this level, x and y


def _level(
    images: Tensor,  # [B, C, H, W]
    size: tuple[int, int],
    mask: Tensor | None,  # [B, 1, H, W] bool
    border: int | None,
    image_size: Tensor | None,  # [B, 2] (width, height)
    seen: Tensor | None,  # [B, 1, H, W] bool
) -> _Level:
    """Shrink or enlarge the images, and what comes with them; pixels that are not ``seen`` have no influence."""
    (height, width), (h, w) = images.shape[-2:], size
    zoom = (width / w, height / h)
    if size == (height, width):
        return _Level(images, mask, border, image_size, zoom)
    if mask is not None:  # the pixel of the image in which a pixel's centre lies
        mask = F.interpolate(mask.to(torch.uint8), size, mode="nearest-exact").bool()
    if border:  # (x' + 1/2) * zoom - 1/2 >= border
        border = max(0, math.ceil((border + 0.5) / min(zoom) - 0.5 - 1e-6))
    if image_size is not None:
        columns, rows = image_size.to(torch.int64).unbind(1)  # products don't fit into small integers
        image_size = torch.stack([columns * w // width, rows * h // height], 1).clamp(min=1)
    if seen is None or not len(images):
        return _Level(_resize(images, size), mask, border, image_size, zoom)
    weight = _resize(seen.to(images.dtype), size)
    small = _resize(torch.where(seen, images, 0), size) / torch.where(weight > 0, weight, 1)
    return _Level(small, mask, border, image_size, zoom)


def _resize(
    images: Tensor,  # [B, C, H, W]
    size: tuple[int, int],
) -> Tensor:  # [B, C, h, w]
    if not len(images):
        return images.new_zeros(*images.shape[:2], *size)
    pixels = images.to(at_least_float32(images.dtype))  # there is no antialiasing in half precision on the CPU
    return F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=True).to(images.dtype)


class _Found(NamedTuple):
    """Features of one scale, at their places in the images, and how many pixels of the images one of theirs is."""

    features: PaddedFeatures
    zoom: float


def _in_image(
    features: PaddedFeatures,
    zoom: tuple[float, float],
    images: Tensor,  # [B, C, H, W]
    mask: Tensor | None,  # [B, 1, H, W]
    image_size: Tensor | None,  # [B, 2] (width, height)
) -> _Found:
    """Features of a resized image in the image; refined ones that have left the mask are dropped."""
    if zoom == (1.0, 1.0):
        return _Found(features, 1.0)
    places, valid = (features.keypoints + 0.5) * _pair(zoom, features.keypoints) - 0.5, features.valid
    places = torch.minimum(places.clamp(min=0), _last_pixels(images, image_size).to(places.dtype))
    if mask is not None:
        x, y = (places.detach() + 0.5).floor().long().unbind(-1)
        pixels = (y * images.shape[-1] + x).clamp(0, images.shape[-2:].numel() - 1)  # those of NaN are not valid
        valid = valid & as_mask(mask, images).flatten(1).gather(1, pixels)
    kept = valid[..., None]
    descriptors = torch.where(kept, features.descriptors, 0)
    scores = torch.where(valid, features.scores, 0)
    return _Found(PaddedFeatures(torch.where(kept, places, 0), scores, descriptors, valid), math.sqrt(math.prod(zoom)))


def _pair(
    values: tuple[float, float],
    like: Tensor,
) -> Tensor:  # [2]
    """Two numbers on the device of a tensor, for which nothing has to be copied there."""
    return torch.stack([torch.full((), value, dtype=like.dtype, device=like.device) for value in values])


def _last_pixels(
    images: Tensor,  # [B, C, H, W]
    image_size: Tensor | None,  # [B, 2] (width, height)
) -> Tensor:  # [1 or B, 1, 2]
    """The pixel at the bottom right of each image."""
    height, width = images.shape[-2:]
    whole = _pair((width - 1, height - 1), images.new_empty((), dtype=torch.float32))[None, None]
    if image_size is None:
        return whole
    size = image_size.to(images.device, torch.int64, non_blocking=True)
    return torch.minimum(whole, (size - 1).float()[:, None])


def _best(
    found: Sequence[_Found],
    n: int | None,
) -> tuple[PaddedFeatures, Tensor]:
    """The best features of all scales in n columns (None: as many as the richest image has), and their zoom [B, n]."""
    keypoints, scores, descriptors, valid = (
        torch.cat(parts, 1) for parts in zip(*(each.features for each in found), strict=True)
    )
    zooms = torch.cat([torch.full_like(each.features.scores, each.zoom) for each in found], 1)
    columns = n if n is not None else int(valid.sum(1).max()) if valid.numel() else 0
    ranks = torch.where(valid, scores, -math.inf).argsort(dim=1, descending=True, stable=True)
    best = ranks[:, :columns]
    rows = best[..., None]
    chosen: tuple[Tensor, ...] = (
        keypoints.gather(1, rows.expand(-1, -1, 2)),
        scores.gather(1, best),
        descriptors.gather(1, rows.expand(-1, -1, descriptors.shape[-1])),
        valid.gather(1, best),
        zooms.gather(1, best),
    )
    missing = columns - best.shape[1]  # n may be more than the images have pixels
    if missing > 0:
        chosen = tuple(torch.cat([part, part.new_zeros(len(part), missing, *part.shape[2:])], 1) for part in chosen)
    return PaddedFeatures(*chosen[:4]), chosen[4]
