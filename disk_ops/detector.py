"""DISKDetector: images to keypoints, scores and descriptors, in place of ``kornia.feature.DISK``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from disk_ops._images import as_mask, check_images, check_sizes, pad_to_multiple, repeat_channel, valid_pixels
from disk_ops._keypoints import draw_proposals, find_maxima, positions
from disk_ops._network import check_channels, maps, precise_heads
from disk_ops.checkpoint import DEFAULT_CHECKPOINT, descriptor_dimension, read_state_dict, working_dtype
from disk_ops.features import DISKFeatures, PaddedFeatures, SampledFeatures
from disk_ops.geometry import check_points, laf_centres, lafs_from_keypoints, sample_descriptors
from disk_ops.model import UNet
from disk_ops.ops._arguments import check_positive_integer, check_tensor
from disk_ops.ops._dtypes import at_least_float32
from disk_ops.ops.nms import check_maxima
from disk_ops.tiled import check_tiling, detect_tiled, limit_for


class DISKDetector(nn.Module):
    r"""Detect and describe the local features of DISK (Tyszkiewicz, Fua, Trulls, NeurIPS 2020).

    A U-Net gives each pixel a score and a descriptor; keypoints are the local maxima of the scores. Images are
    :math:`(B, C, H, W)` in [0, 1] with one or three channels (RGB), of any size: sizes that the network can't take are
    padded with zeros at the bottom and right, and results are cropped back. Keypoints are pixels in xy order with
    integer pixel centres, best score first.

    Calls, weights and results are those of ``kornia.feature.DISK``, except that a plateau keeps one pixel instead of
    none, every size and one-channel images are accepted, keypoints come best first instead of in raster order, and
    nothing is downloaded. Like kornia's, they keep ``window_size // 2`` pixels from the edges; ``border=0`` keeps all.

    In half precision (``detector.half()``, ``detector.to(torch.bfloat16)``) weights and what is stored between
    convolutions are half: half the memory. On the CPU everything is computed in float32 and rounded where it is stored,
    whatever instructions the processor has, in about the time of float32; on CUDA convolutions are cuDNN's. Scores,
    log-probabilities and keypoints are float32, descriptors come in the network's dtype, normalised before rounding.
    Under autocast the same holds, with weights in float32.

    Gradients reach the scores and descriptors (and the weights). Where they aren't needed use
    ``torch.inference_mode()``, which takes less memory and, for large images, tiles.

    Args:
        desc_dim: descriptor dimension.
        unet: a network of your own, :math:`(B, 3, H, W) \to (B, \mathrm{desc\_dim} + 1, H, W)`.
        norm: ``"instance"`` takes the statistics of the instance norm over the whole padded image, as every other
            implementation does. ``"valid"`` takes them, and everything else, from valid pixels only (those inside
            ``image_size`` and ``mask``), so that an image gives the same features alone and in a padded batch, and
            what is masked has no influence.
        subpixel: move keypoints to the peak of the quadratic through the scores around them, by at most half a pixel
            (:func:`disk_ops.subpixel.refine_keypoints`). Scores and descriptors stay those of the whole pixel;
            :meth:`describe` interpolates at the points that it is given.

    Raises:
        ValueError, TypeError: an argument, here or in a call, has a wrong shape, dtype, device or value; the message
            names it.

    Example:
        >>> detector = DISKDetector.from_pretrained()
        >>> features = detector(torch.rand(1, 3, 96, 128), n=64)
        >>> features[0].descriptors.shape[1]
        128
    """

    def __init__(
        self,
        desc_dim: int = 128,
        unet: nn.Module | None = None,
        *,
        norm: Literal["instance", "valid"] = "instance",
        subpixel: bool = False,
    ) -> None:
        super().__init__()
        check_positive_integer("desc_dim", desc_dim)
        if norm not in ("instance", "valid"):
            raise ValueError(f"norm must be 'instance' or 'valid', got {norm!r}")
        if unet is not None and not isinstance(unet, nn.Module):
            raise TypeError(f"unet must be an nn.Module, got {type(unet).__name__}")
        if norm == "valid" and unet is not None and not isinstance(unet, UNet):
            raise ValueError("norm='valid' needs the network of disk_ops.model, got a unet of another type")
        self.desc_dim = desc_dim
        self.norm, self.subpixel = norm, subpixel
        self.unet = UNet(desc_dim=desc_dim) if unet is None else unet

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str | Path | Mapping[str, Any] = DEFAULT_CHECKPOINT,
        device: torch.device | str | None = None,
        *,
        norm: Literal["instance", "valid"] = "instance",
        subpixel: bool = False,
    ) -> DISKDetector:
        """Load weights: bundled, from a file, or from a state dict; nothing is downloaded or executed.

        Args:
            checkpoint: a bundled name, the path of a ``.safetensors`` or PyTorch file (the released ``depth-save.pth``
                and those of kornia or of the released training code included), or a mapping of tensors.
            device: where the detector goes.
            norm: see :class:`DISKDetector`.
            subpixel: see :class:`DISKDetector`.

        Returns:
            The detector in evaluation mode, in float32 whatever half type the weights are stored in (float64 stays).
            ``.half()`` or ``.to(torch.bfloat16)`` make it compute in half precision.

        Raises:
            FileNotFoundError, ValueError: no such checkpoint, or what is wrong with it.
            TypeError: ``checkpoint`` is no name, path or mapping.
        """
        weights = read_state_dict(checkpoint)
        # Before the weights come, not after: float64 would be rounded on the way.
        detector = cls(descriptor_dimension(weights), norm=norm, subpixel=subpixel).to(working_dtype(weights))
        try:
            detector.load_state_dict(weights)
        except RuntimeError as error:
            source = "the given mapping" if isinstance(checkpoint, Mapping) else str(checkpoint)
            raise ValueError(f"{source} does not fit the DISK network: {error}") from error
        return detector.to(device=device).eval()

    def heatmap_and_dense_descriptors(
        self,
        images: Tensor,  # [B, C, H, W]
        valid: Tensor | None = None,  # [B, 1, H, W] bool
    ) -> tuple[Tensor, Tensor]:
        """Return the score of every pixel and its descriptor, not normalised.

        Args:
            images: shape :math:`(B, C, H, W)`, C 1 or 3, any size.
            valid: with ``norm="valid"``, the pixels to take into account (default: all).

        Returns:
            heatmap :math:`(B, 1, H, W)` (logits, in float32 at least), descriptors :math:`(B, D, H, W)`.
        """
        heatmap, dense = maps(self.unet, *self._network_input(images, valid), self.desc_dim)
        height, width = images.shape[-2:]
        return heatmap[..., :height, :width], dense[..., :height, :width]

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
        """Detect and describe features.

        Args:
            images: shape :math:`(B, C, H, W)` in [0, 1], C 1 or 3, in the detector's dtype. A NaN or infinite pixel
                spoils the norms' statistics of its image, which then has no features (with ``norm="valid"``, unless it
                is masked).
            n: at most this many features per image, the best ones; ``None``: all.
            window_size: odd width of the non-maximum suppression window.
            score_threshold: features score strictly above it.
            pad_if_not_divisible: False (kornia's default) raises ``ValueError`` for sizes that are no multiples of 16.
            mask: features come only from pixels where it is True (or above 0), shape :math:`(B, 1, H, W)`.
            border: features keep this distance from the edges of the image; ``None``: ``window_size // 2``.
            image_size: width and height of each image in a batch padded at the bottom and right,
                shape :math:`(B, 2)`; features come from the images only.
            max_memory: GB that may be taken besides images and features; where that is too little, images are computed
                in tiles, with the same features to rounding, several times. ``None``: half of what is free. Only
                without gradients, with ``norm="instance"`` and the network of :mod:`disk_ops.model`.
            statistics: in tiles, the statistics of the norms are those of the whole image, or, ``"sampled"``, those of
                every eighth tile, which is faster and gives other features.
            progress: in tiles, is called with the number of tiles done, and of all.

        Returns:
            The features of each image, best score first.
        """
        check_tensor("images", images)
        check_maxima(n, window_size, score_threshold, border)
        check_tiling(statistics, progress)
        if not pad_if_not_divisible:
            check_sizes(images, self._stride, "; pad_if_not_divisible=True pads them")
        n = n if n is None else min(n, max(1, images.shape[-2:].numel()))  # columns cost time and memory
        limit = limit_for(images, self.unet, self.norm, max_memory)
        if limit is None:
            return self._features(images, n, window_size, score_threshold, mask, border, image_size).unpad()
        assert isinstance(self.unet, UNet)
        keep = valid_pixels(images, mask, image_size)
        maxima = (n, window_size, score_threshold, keep, border, image_size)
        return detect_tiled(self.unet, images, limit, *maxima, statistics == "sampled", progress, self.subpixel)

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
        """Detect and describe features in fixed shapes: see :meth:`forward`, whose arguments it shares.

        Returns:
            :class:`PaddedFeatures` with ``n`` columns, also where there are fewer pixels (``None``: as many as the
            richest image has features), best score first; ``valid`` tells which hold a feature.
        """
        return self._features(images, n, window_size, score_threshold, mask, border, image_size)

    def forward_laf(
        self,
        img: Tensor,  # [B, C, H, W]
        mask: Tensor | None = None,  # [B, 1, H, W]
        n: int | None = None,
        window_size: int = 5,
        score_threshold: float = 0.0,
        border: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Detect and describe features as kornia's local affine frames (scale 1, upright).

        Args are those of :meth:`forward`; ``n=None`` makes as many columns as the richest image has features.

        Returns:
            lafs :math:`(B, N, 2, 3)`, responses :math:`(B, N, 1)`, descriptors :math:`(B, N, D)`. Where an image has
            fewer features, all three are zero, which ``kornia.feature.laf_is_filled`` tells.
        """
        features = self._features(img, n, window_size, score_threshold, mask, border, None)
        return lafs_from_keypoints(features.keypoints, features.valid), features.scores[..., None], features.descriptors

    def detect(
        self,
        img: Tensor,  # [B, C, H, W]
        mask: Tensor | None = None,  # [B, 1, H, W]
        n: int | None = None,
        window_size: int = 5,
        score_threshold: float = 0.0,
        border: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Detect features, in the form of kornia's detectors; see :meth:`forward_laf`.

        Returns:
            lafs :math:`(B, N, 2, 3)`, responses :math:`(B, N)`.
        """
        lafs, responses, _ = self.detect_with_dense_descriptors(img, mask, n, window_size, score_threshold, border)
        return lafs, responses

    def detect_with_dense_descriptors(
        self,
        img: Tensor,  # [B, C, H, W]
        mask: Tensor | None = None,  # [B, 1, H, W]
        n: int | None = None,
        window_size: int = 5,
        score_threshold: float = 0.0,
        border: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Detect features and return the map that their descriptors are read from; see :meth:`detect`.

        Returns:
            lafs :math:`(B, N, 2, 3)`, responses :math:`(B, N)`, dense descriptors :math:`(B, D, H, W)`.
        """
        keep = valid_pixels(img, mask, None)
        heatmap, dense = self.heatmap_and_dense_descriptors(img, keep)
        maxima = find_maxima(heatmap, n, window_size, score_threshold, keep, border)
        keypoints = positions(heatmap, maxima, keep, self.subpixel)
        return lafs_from_keypoints(keypoints, maxima.valid), maxima.scores, dense

    def describe(
        self,
        images: Tensor,  # [B, C, H, W]
        keypoints: Tensor,  # [B, N, 2] xy or [B, N, 2, 3] LAFs
        mask: Tensor | None = None,  # [B, 1, H, W]
    ) -> Tensor:
        """Describe given points, exactly at integer pixels and by bilinear interpolation between them.

        Args:
            images: shape :math:`(B, C, H, W)` in [0, 1].
            keypoints: points in pixels, shape :math:`(B, N, 2)`, or local affine frames, whose centres count, shape
                :math:`(B, N, 2, 3)`; integers or floating point. Points outside the image get the descriptor of the
                nearest pixel, NaN gives NaN.
            mask: with ``norm="valid"``, the pixels to take into account.

        Returns:
            L2-normalised descriptors :math:`(B, N, D)`.
        """
        check_tensor("images", images)
        check_points(keypoints, len(images), frames=True)
        _, dense = self.heatmap_and_dense_descriptors(images, valid_pixels(images, mask, None))
        return sample_descriptors(dense, laf_centres(keypoints))

    def sample(
        self,
        images: Tensor,  # [B, C, H, W]
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        mask: Tensor | None = None,  # [B, 1, H, W]
        cell: int = 8,
    ) -> list[SampledFeatures]:
        """Draw features by the training policy: in each grid cell one proposal, accepted or not (DISK, section 3).

        Descriptors are computed at accepted proposals only. Gradients reach them and the log-probabilities. Under
        autocast the network computes as that says, its last layer and all that follows in the weights' own precision.

        Args:
            images: shape :math:`(B, C, H, W)` in [0, 1].
            generator: of the draw; ``None``: torch's default. The same seed draws the same on every device. A sequence
                has one for each image, whose draw then doesn't depend on the batch that it is part of.
            mask: proposals come only from pixels where it is True (or above 0), shape :math:`(B, 1, H, W)`.
            cell: side of a grid cell in pixels.

        Returns:
            The accepted features of each image, in raster order of their cells.
        """
        keep = valid_pixels(images, mask, None)
        heatmap, read = self.heatmap_and_reader(images, keep, autocast=False)
        samples = draw_proposals(heatmap, cell, generator, keep)
        accepted = samples.accepted.flatten(1)  # [B, h * w]
        keypoints = [xy[chosen] for xy, chosen in zip(samples.keypoints.flatten(1, 2), accepted, strict=True)]
        if not keypoints:
            return []
        descriptors = read(pad_sequence(keypoints, batch_first=True))
        return [
            SampledFeatures(xy.to(heatmap.dtype), desc[: len(xy)], logp[chosen])
            for xy, desc, logp, chosen in zip(keypoints, descriptors, samples.logp.flatten(1), accepted, strict=True)
        ]

    def _network_input(
        self,
        images: Tensor,  # [B, C, H, W]
        valid: Tensor | None,  # [B, 1, H, W] bool
    ) -> tuple[Tensor, Tensor | None]:
        """Checked images in sizes and channels that the network takes, and with ``norm="valid"`` the valid pixels."""
        channels = self.unet.in_channels if isinstance(self.unet, UNet) else 3
        check_images(images, next(self.parameters(), None), channels)
        if valid is not None:
            valid = as_mask(valid, images, "valid")
        padded = pad_to_multiple(repeat_channel(images, channels), self._stride)
        if self.norm != "valid":
            return padded, None
        if valid is None:
            valid = torch.ones_like(images[:, :1], dtype=torch.bool)
        return padded, pad_to_multiple(valid, self._stride)

    def heatmap_and_reader(
        self,
        images: Tensor,  # [B, C, H, W]
        valid: Tensor | None,  # [B, 1, H, W] bool
        autocast: bool = True,
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Heatmap ``[B, 1, H, W]``, and what gives descriptors ``[B, N, D]`` at pixels ``[B, N, 2]`` of the images.

        The heatmap is float32 at least. Without ``autocast`` both have the weights' precision besides, whatever
        autocast made of the network.
        """
        if not isinstance(self.unet, UNet):
            heatmap, dense = self.heatmap_and_dense_descriptors(images, valid)
            dense = dense if autocast else dense.to(at_least_float32(images.dtype))
            return heatmap, lambda keypoints: sample_descriptors(dense, keypoints)
        check_channels(len(self.unet.last_convolution.weight), self.desc_dim)
        inputs = self._network_input(images, valid)
        heatmap, reader = self.unet.heads(*inputs) if autocast else precise_heads(self.unet, *inputs)
        return heatmap[..., : images.shape[-2], : images.shape[-1]], reader

    @property
    def _stride(self) -> int:
        return self.unet.stride if isinstance(self.unet, UNet) else 16

    def _features(
        self,
        images: Tensor,
        n: int | None,
        window_size: int,
        score_threshold: float,
        mask: Tensor | None,
        border: int | None,
        image_size: Tensor | None,
    ) -> PaddedFeatures:
        keep = valid_pixels(images, mask, image_size)
        heatmap, read = self.heatmap_and_reader(images, keep)
        maxima = find_maxima(heatmap, n, window_size, score_threshold, keep, border, image_size)
        descriptors = torch.where(maxima.valid[..., None], read(maxima.keypoints), 0)
        keypoints = positions(heatmap, maxima, keep, self.subpixel)
        return PaddedFeatures(keypoints, maxima.scores, descriptors, maxima.valid)
