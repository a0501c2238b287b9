"""Features of an image that is gone through in tiles: the best of all, as if it were computed at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops import buffers
from disk_ops._images import check_images, repeat_channel
from disk_ops._keypoints import positions
from disk_ops.features import DISKFeatures
from disk_ops.model import UNet
from disk_ops.ops import block_convolution, describe_block, nms_topk
from disk_ops.ops.nms import check_maxima
from disk_ops.tiled.boxes import Box, tiles
from disk_ops.tiled.memory import Limit
from disk_ops.tiled.network import TiledNetwork

Progress = Callable[[int, int], None]
_SAMPLED = 8  # with sampled statistics, every so many tiles count


def check_tiling(statistics: str, progress: Progress | None) -> None:
    """Raise for arguments of the detector that only images in tiles need, whether or not there are tiles."""
    if statistics not in ("exact", "sampled"):
        raise ValueError(f"statistics must be 'exact' or 'sampled', got {statistics!r}")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be callable or None, got {type(progress).__name__}")


class Best:
    """The best features so far: by score, then in raster order."""

    def __init__(self, n: int | None, width: int) -> None:
        self._n, self._width = n, width
        self._parts: list[tuple[Tensor, ...]] = []

    def may_enter(self, scores: Tensor) -> Tensor:  # [M] -> [M] bool
        """Whether features with these scores could be among the best."""
        full = self._n is not None and self._parts and len(self._parts[0][1]) == self._n
        return scores >= self._parts[0][1][-1] if full else torch.ones_like(scores, dtype=torch.bool)

    def add(
        self,
        keypoints: Tensor,  # [M, 2] int64 xy
        scores: Tensor,  # [M]
        descriptors: Tensor,  # [M, D]
        places: Tensor,  # [M, 2] xy, perhaps between pixels
    ) -> None:
        """Take features into account."""
        self._parts.append((keypoints, scores, descriptors, places))
        if self._n is not None:
            self._parts = [self.result()]

    def result(self) -> tuple[Tensor, ...]:
        """What :meth:`add` took of the best, best first."""
        together = [torch.cat(part) for part in zip(*self._parts, strict=True)]
        keypoints, scores = together[:2]
        raster = torch.argsort(keypoints[:, 1] * self._width + keypoints[:, 0])
        order = raster[torch.argsort(scores[raster], descending=True, stable=True)][: self._n]
        return tuple(part[order] for part in together)


def detect_tiled(
    unet: UNet,
    images: Tensor,  # [B, C, H, W]
    limit: Limit,
    n: int | None,
    window_size: int,
    score_threshold: float,
    keep: Tensor | None,  # [B, 1, H, W] bool
    border: int | None,
    image_size: Tensor | None = None,  # [B, 2] (width, height)
    sampled: bool = False,
    progress: Progress | None = None,
    subpixel: bool = False,
) -> list[DISKFeatures]:
    """Detect and describe features as :meth:`disk_ops.DISKDetector.forward` does, tile by tile.

    Args:
        unet: the network.
        images: as for the detector, on its device and in its dtype.
        limit: size of the tiles, and room for what is kept.
        n: as for the detector, like the following arguments.
        window_size: width of the non-maximum suppression window.
        score_threshold: features score strictly above it.
        keep: features come only from where it is True.
        border: distance from the edges of the image.
        image_size: width and height of each image in a padded batch.
        sampled: take the statistics of norms from every eighth tile only.
        progress: is called with the number of tiles gone through, and of all.
        subpixel: refine keypoints between pixels.

    Raises:
        ValueError, TypeError: an argument has a wrong shape, dtype, device or value; the message names it.
    """
    check_images(images, next(unet.parameters()), unet.in_channels)
    check_maxima(n, window_size, score_threshold, border)
    border, results = window_size // 2 if border is None else border, []
    with buffers.at_most(limit.buffers):
        for i, image in enumerate(images):
            width, height = image.shape[:0:-1] if image_size is None else image_size[i].tolist()
            extent = (height, width)
            whole = _Image(unet, image[None], limit)
            steps = len(images) * (whole.network.steps + len(list(tiles(extent, limit.side))))
            done = _Counter(progress, i * steps // len(images), steps)
            whole.network.gather(done.advance, _SAMPLED if sampled else 1)
            best = Best(n, image.shape[-1])
            mask = None if keep is None else keep[i, None]
            for tile in tiles(extent, limit.side):
                best.add(*whole.features(tile, extent, best, n, window_size, score_threshold, mask, border, subpixel))
                done.advance(1)
            _, scores, descriptors, places = best.result()
            results.append(DISKFeatures(places, descriptors, scores))
    return results


class _Counter:
    def __init__(self, progress: Progress | None, done: int, total: int) -> None:
        self._progress, self._done, self._total = progress, done, total

    def advance(self, number: int) -> None:
        self._done += number
        if self._progress is not None:
            self._progress(self._done, self._total)


class _Image:
    """One image and its network."""

    def __init__(
        self,
        unet: UNet,
        image: Tensor,  # [1, C, H, W]
        limit: Limit,
    ) -> None:
        self._image = image
        height, width = image.shape[-2:]
        stride = unet.stride
        size = (-(-height // stride) * stride, -(-width // stride) * stride)
        self._channels = unet.in_channels
        self.network = TiledNetwork(unet, self._read, size, limit.side, limit.room)

    def _read(self, box: Box) -> Tensor:  # [1, C, h, w]
        """A part of the image, zeros beyond its right and bottom edge."""
        height, width = self._image.shape[-2:]
        inside = Box(box.top, box.left, min(box.bottom, height), min(box.right, width))
        part = repeat_channel(inside.crop(self._image, Box(0, 0, height, width)), self._channels)
        return F.pad(part, (0, box.right - inside.right, 0, box.bottom - inside.bottom))

    def features(
        self,
        tile: Box,
        extent: tuple[int, int],  # height, width
        best: Best,
        n: int | None,
        window_size: int,
        score_threshold: float,
        mask: Tensor | None,  # [1, 1, H, W] bool
        border: int,
        subpixel: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What :meth:`Best.add` takes of a tile's features, those that may be among the best."""
        seen = tile.grown(max(window_size // 2, int(subpixel)), extent)
        last = self.network.nodes[-1]
        weight, bias = last.block.convolution.weight, last.block.convolution.bias
        assert bias is not None
        x, skip, read = self.network.last_inputs(seen)
        norm, slope = self.network.norm(last), last.block.slope
        heatmap = seen.crop(block_convolution(x, weight[-1:], bias[-1:], skip, norm, slope, "up"), read)
        whole = Box(0, 0, *self._image.shape[-2:])
        kept = None if mask is None else seen.crop(mask, whole)
        maxima = nms_topk(heatmap, None, window_size, score_threshold, 0, kept)
        corner = maxima.keypoints.new_tensor([seen.left, seen.top])
        keypoints, scores = maxima.keypoints[0] + corner, maxima.scores[0]
        places = positions(heatmap, maxima, kept, subpixel)[0] + corner
        first = keypoints.new_tensor([max(tile.left, border), max(tile.top, border)])
        end = keypoints.new_tensor([min(tile.right, extent[1] - border), min(tile.bottom, extent[0] - border)])
        chosen = ((keypoints >= first) & (keypoints < end)).all(1) & best.may_enter(scores)
        keypoints, scores, places = (each[chosen][:n] for each in (keypoints, scores, places))
        pixels = keypoints - keypoints.new_tensor([read.left, read.top])
        descriptors = describe_block(x, weight[:-1], bias[:-1], pixels[None], skip, norm, slope, "up")[0]
        return keypoints, scores, descriptors, places
