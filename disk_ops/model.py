"""The U-Net of DISK, exactly as released: its weights are interchangeable with the paper's code and kornia's.

Five convolutions on the way down (16, 32, 64, 64, 64 channels; the first at full resolution), four on the way up, each
5×5 with zero padding and, except the first, after instance norm and PReLU. Skips carry the convolutions' raw output.
Names of parameters and the empty slots between modules are those of the released checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from disk_ops._images import check_network_input
from disk_ops.ops import block_activation, block_convolution, block_norm, conv_block, describe, describe_block
from disk_ops.ops._arguments import check_positive_integer
from disk_ops.ops._dtypes import HALF_TYPES, as_autocast, at_least_float32, autocast_dtype
from disk_ops.ops.blocks import Resample, has_kernel, takes, wants_gradient
from disk_ops.reference_blocks import convolution

_ALL = slice(None)
DOWN_CHANNELS = (16, 32, 64, 64, 64)
UP_CHANNELS = (64, 64, 64)  # and desc_dim + 1


class InstanceNorm(nn.Module):
    r"""Normalise each channel of each image to zero mean and unit variance over its pixels.

    .. math:: y = (x - \mathrm{mean}(x)) / \sqrt{\mathrm{var}(x) + 10^{-5}}

    A single pixel gives 0, where ``torch.nn.InstanceNorm2d`` raises. With ``valid``, mean and variance are those of
    the valid pixels, and the others become 0, which is what a convolution sees beyond the edge of an image.
    """

    eps = 1e-5

    def forward(
        self,
        x: Tensor,  # [B, C, H, W]
        valid: Tensor | None = None,  # [B, 1, H, W] bool
    ) -> Tensor:
        """Return the normalised ``x``, of the same shape and dtype."""
        if valid is not None:
            return self._normalize_valid(x, valid)
        if x.shape[2] * x.shape[3] == 1:
            return torch.zeros_like(x)
        return F.instance_norm(x, eps=self.eps)

    def _normalize_valid(self, x: Tensor, valid: Tensor) -> Tensor:
        values = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        count = valid.sum((2, 3), keepdim=True).clamp(min=1)
        # where(), not a product: what lies outside may be infinite.
        mean = torch.where(valid, values, 0).sum((2, 3), keepdim=True) / count
        centred = torch.where(valid, values - mean, 0)
        variance = centred.square().sum((2, 3), keepdim=True) / count
        return (centred * torch.rsqrt(variance + self.eps)).to(x.dtype)


class ConvBlock(nn.Sequential):
    """Instance norm, PReLU with a slope per channel, an empty slot (dropout in the released code), convolution."""

    def __init__(self, in_channels: int, out_channels: int, size: int, gated: bool = True) -> None:
        super().__init__(
            InstanceNorm() if gated else nn.Identity(),
            nn.PReLU(in_channels) if gated else nn.Identity(),
            nn.Identity(),
            nn.Conv2d(in_channels, out_channels, size, padding="same"),
        )
        self.gated = gated

    def forward(
        self,
        x: Tensor,  # [B, C, H, W]
        valid: Tensor | None = None,  # [B, 1, H, W] bool
        outputs: slice = _ALL,
    ) -> Tensor:
        """Return some or all of the block's outputs, 0 outside ``valid`` where that is given."""
        activation = self.activation(x, valid)
        x = self.convolved(activation, outputs) if self.plain else self[3](activation)[:, outputs]
        return x if valid is None else torch.where(valid, x, 0)

    def convolved(
        self,
        activation: Tensor,  # [B, C, H, W]
        outputs: slice = _ALL,
    ) -> Tensor:  # [B, K, H, W]
        """Some or all outputs of the convolution; a single one, a score, in float32 at least."""
        weight, bias = self.convolution.weight, self.convolution.bias
        assert bias is not None
        return convolution(as_autocast(activation), as_autocast(weight[outputs]), as_autocast(bias[outputs]))

    @property
    def convolution(self) -> nn.Conv2d:
        """The last of the modules."""
        convolution = self[3]
        assert isinstance(convolution, nn.Conv2d)
        return convolution

    @property
    def slope(self) -> Tensor | None:
        """Of negative values in PReLU; None without one."""
        gate = self[1]
        return gate.weight if type(gate) is nn.PReLU else None

    @property
    def standard(self) -> bool:
        """Whether the modules are those that the ops on blocks stand for."""
        return self.plain and self.convolution.kernel_size == (5, 5) and (self.slope is not None) == self.gated

    @property
    def plain(self) -> bool:
        """Whether the convolution is one with ``padding="same"`` and a bias, and nothing more."""
        convolution = self[3]
        if type(convolution) is not nn.Conv2d or convolution.padding != "same" or convolution.bias is None:
            return False
        return convolution.groups == 1 and convolution.dilation == (1, 1) and convolution.padding_mode == "zeros"

    def fuses(self, x: Tensor, skip: Tensor | None = None) -> bool:
        """Whether there are kernels for :meth:`fused`, and the modules are those that they stand for."""
        if not self.standard:
            return False
        tensors = (self.convolution.weight, self.convolution.bias, self.slope)
        return has_kernel(x, skip, *tensors) if self.gated else takes(x, *tensors)

    def fused(
        self,
        x: Tensor,  # [B, C1, h, w]
        skip: Tensor | None,  # [B, C2, H, W]
        resample: Resample,
        outputs: slice = _ALL,
    ) -> Tensor:  # [B, K, H, W]
        """Some or all outputs, from an input that isn't resampled and joined yet, by :mod:`disk_ops.ops.blocks`."""
        weight, bias = self.convolution.weight, self.convolution.bias
        assert bias is not None
        return conv_block(x, weight[outputs], bias[outputs], skip, self.slope, resample)

    def activation(
        self,
        x: Tensor,  # [B, C, H, W]
        valid: Tensor | None = None,  # [B, 1, H, W] bool
    ) -> Tensor:
        """Return what enters the convolution."""
        norm, gate, _, _ = self
        if self.gated:
            return gate(norm(x, valid))
        return x if valid is None else torch.where(valid, x, 0)


class DownBlock(nn.Sequential):
    """Average pooling by 2 (none in the first block), then a :class:`ConvBlock`."""

    def __init__(self, in_channels: int, out_channels: int, size: int, first: bool = False) -> None:
        super().__init__(
            nn.Identity() if first else nn.AvgPool2d(2), ConvBlock(in_channels, out_channels, size, gated=not first)
        )

    def forward(
        self,
        x: Tensor,  # [B, C, H, W]
        valid: Tensor | None = None,  # [B, 1, H / 2, W / 2] bool, after the pooling
        share: Tensor | None = None,  # [B, 1, H / 2, W / 2] how much of each pooled pixel was valid
    ) -> Tensor:
        """Return the block's output; with ``valid``, pooling averages valid pixels only."""
        pooling, block = self
        assert isinstance(block, ConvBlock)
        if valid is None and share is None and block.fuses(x):
            return block.fused(x, None, "pool" if block.gated else "none")
        x = pooling(x)
        if share is not None:
            x = x / share.to(x.dtype)
        return block(x, valid)


class UpBlock(nn.Module):
    """Bilinear up-sampling by 2, concatenation with the skip, then a :class:`ConvBlock`."""

    def __init__(self, in_channels: int, skip_channels: int, out_channels: int, size: int) -> None:
        super().__init__()
        self.conv = ConvBlock(in_channels + skip_channels, out_channels, size)

    def forward(
        self,
        x: Tensor,  # [B, C1, H, W]
        skip: Tensor,  # [B, C2, 2H, 2W]
        valid: Tensor | None = None,  # [B, 1, 2H, 2W] bool
        coarse_valid: Tensor | None = None,  # [B, 1, H, W] bool
        outputs: slice = _ALL,
    ) -> Tensor:
        """Return some or all of the block's outputs; with ``valid``, interpolation weighs valid pixels only."""
        if valid is None and coarse_valid is None and self.conv.fuses(x, skip):
            return self.conv.fused(x, skip, "up", outputs)
        return self.conv(self.merge(x, skip, coarse_valid), valid, outputs)

    def activation(
        self,
        x: Tensor,  # [B, C1, H, W]
        skip: Tensor,  # [B, C2, 2H, 2W]
        valid: Tensor | None = None,  # [B, 1, 2H, 2W] bool
        coarse_valid: Tensor | None = None,  # [B, 1, H, W] bool
    ) -> Tensor:
        """Return what enters the convolution, ``[B, C1 + C2, 2H, 2W]``."""
        if valid is None and coarse_valid is None and self.conv.fuses(x, skip):
            return block_activation(x, skip, self.conv.slope, "up")
        return self.conv.activation(self.merge(x, skip, coarse_valid), valid)

    def merge(
        self,
        x: Tensor,  # [B, C1, H, W]
        skip: Tensor,  # [B, C2, 2H, 2W]
        coarse_valid: Tensor | None = None,  # [B, 1, H, W] bool
    ) -> Tensor:
        """Return what enters the :class:`ConvBlock`, ``[B, C1 + C2, 2H, 2W]``."""
        x = _upsample(x)
        if coarse_valid is not None:
            weight = _upsample(coarse_valid.to(x.dtype))
            # The outer where() hides 0 / 0 from the result, the inner one from its gradient.
            x = torch.where(weight > 0, x / torch.where(weight > 0, weight, 1), 0)
        return torch.cat([x, skip], dim=1)


def _upsample(
    x: Tensor,  # [B, C, H, W]
) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


class UNet(nn.Module):
    """The network of DISK: ``[B, 3, H, W]`` images to ``[B, desc_dim + 1, H, W]``, sizes divisible by 16.

    Args:
        in_channels: channels of the images.
        desc_dim: descriptor dimension; the last output channel is the heatmap.
        size: odd size of the convolution kernels.
        down: output channels on the way down.
        up: output channels on the way up, without the last block's ``desc_dim + 1``.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type, or images a wrong shape; the message names it.

    Example:
        >>> UNet(desc_dim=8)(torch.rand(1, 3, 32, 48)).shape
        torch.Size([1, 9, 32, 48])
    """

    def __init__(
        self,
        in_channels: int = 3,
        desc_dim: int = 128,
        size: int = 5,
        down: Sequence[int] = DOWN_CHANNELS,
        up: Sequence[int] = UP_CHANNELS,
    ) -> None:
        super().__init__()
        named = {"in_channels": in_channels, "desc_dim": desc_dim, "size": size}
        named |= {f"{name}[{i}]": n for name, each in (("down", down), ("up", up)) for i, n in enumerate(each)}
        for name, value in named.items():
            check_positive_integer(name, value)
        if size % 2 == 0:
            raise ValueError(f"size must be odd, got {size}")
        if len(down) != len(up) + 2:
            raise ValueError(f"down must have two entries more than up, got {list(down)} and {list(up)}")
        self.in_channels = in_channels
        inputs = [in_channels, *down[:-1]]
        self.path_down = nn.ModuleList(
            DownBlock(before, after, size, first=i == 0)
            for i, (before, after) in enumerate(zip(inputs, down, strict=True))
        )
        outputs = [*up, desc_dim + 1]
        below = [down[-1], *up]
        self.path_up = nn.ModuleList(
            UpBlock(before, skip, after, size)
            for before, skip, after in zip(below, reversed(down[:-1]), outputs, strict=True)
        )

    @property
    def stride(self) -> int:
        """Image sizes must be multiples of this (16)."""
        return 2 ** len(self.path_up)

    @property
    def standard(self) -> bool:
        """Whether all blocks are of the kinds that are built here."""
        blocks = [block for block in self.modules() if isinstance(block, ConvBlock)]
        return type(self) is UNet and len(blocks) == 2 * len(self.path_up) + 1 and all(b.standard for b in blocks)

    @property
    def last_convolution(self) -> nn.Conv2d:
        """The layer that turns :meth:`features` into descriptors and heatmap."""
        return self._last_block.conv.convolution

    @property
    def _last_block(self) -> UpBlock:
        block = self.path_up[-1]
        assert isinstance(block, UpBlock)
        return block

    def forward(
        self,
        images: Tensor,  # [B, 3, H, W]
        valid: Tensor | None = None,  # [B, 1, H, W] bool
    ) -> Tensor:
        """Return descriptors and heatmap as ``[B, desc_dim + 1, H, W]``, both in the dtype of the network.

        In half precision that makes scores equal which are not: :meth:`maps` and :meth:`heads` don't round the heatmap.

        Args:
            images: shape :math:`(B, 3, H, W)` in [0, 1], sizes divisible by 16.
            valid: if given, nothing of the other pixels reaches the result: statistics, pooling, interpolation and
                convolutions take valid pixels only. The result at valid pixels is then the same, to rounding, whatever
                the size of the canvas that an image is padded to.
        """
        x, skip, valid, coarse_valid = self._up_to_last_block(images, valid)
        return self._last_block(x, skip, valid, coarse_valid)

    def maps(
        self,
        images: Tensor,  # [B, 3, H, W]
        valid: Tensor | None = None,  # [B, 1, H, W] bool
    ) -> tuple[Tensor, Tensor]:
        """Return the heatmap ``[B, 1, H, W]``, in float32 at least, and dense descriptors ``[B, desc_dim, H, W]``."""
        if autocast_dtype(self.last_convolution.weight) not in HALF_TYPES or not self._last_block.conv.plain:
            output = self(images, valid)
            return output[:, -1:].to(at_least_float32(output.dtype)), output[:, :-1]
        inputs = self._up_to_last_block(images, valid)
        heatmap, descriptors = (self._last_block(*inputs, outputs) for outputs in (slice(-1, None), slice(-1)))
        return heatmap, descriptors

    def features(
        self,
        images: Tensor,  # [B, 3, H, W]
        valid: Tensor | None = None,  # [B, 1, H, W] bool
    ) -> Tensor:
        """Return what enters the last convolution, after norm and gate, as ``[B, C, H, W]``.

        ``unet(images)`` is ``unet.last_convolution(unet.features(images))``, with zeros outside ``valid`` where that is
        given. :func:`disk_ops.ops.describe` evaluates the convolution at keypoints only.
        """
        return self._last_block.activation(*self._up_to_last_block(images, valid))

    def heads(
        self,
        images: Tensor,  # [B, 3, H, W]
        valid: Tensor | None = None,  # [B, 1, H, W] bool
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return the heatmap ``[B, 1, H, W]``, in float32 at least, and what gives descriptors ``[B, N, D]`` at pixels.

        Pixels are ``[B, N, 2]``, xy.
        """
        x, skip, valid, coarse_valid = self._up_to_last_block(images, valid)
        last, (weight, bias) = self._last_block, (self.last_convolution.weight, self.last_convolution.bias)
        assert bias is not None
        if valid is None and last.conv.fuses(x, skip) and not wants_gradient(x, skip, weight, bias, last.conv.slope):
            slope, norm = last.conv.slope, block_norm(x, skip, "up")
            heatmap = block_convolution(x, weight[-1:], bias[-1:], skip, norm, slope, "up")
            return heatmap, lambda xy: describe_block(x, weight[:-1], bias[:-1], xy, skip, norm, slope, "up")
        activation = last.activation(x, skip, valid, coarse_valid)
        heatmap = last.conv.convolved(activation, slice(-1, None))
        return heatmap, lambda xy: describe(activation, weight[:-1], bias[:-1], xy)

    def _up_to_last_block(
        self,
        images: Tensor,  # [B, 3, H, W]
        valid: Tensor | None,  # [B, 1, H, W] bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """The arguments of the last block."""
        check_network_input(images, self.in_channels, self.stride)
        valids, shares = _valid_pyramid(valid, len(self.path_down))
        x, skips = images, []
        for block, level_valid, share in zip(self.path_down, valids, shares, strict=True):
            x = block(x, level_valid, share)
            skips.append(x)
        fine = len(skips) - 2
        for block in self.path_up[:-1]:
            x = block(x, skips[fine], valids[fine], valids[fine + 1])
            fine -= 1
        return x, skips[fine], valids[fine], valids[fine + 1]


def _valid_pyramid(
    valid: Tensor | None,  # [B, 1, H, W] bool
    levels: int,
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """For each level: which pixels hold any valid one, and what share of each pooled pixel was valid (1 where none)."""
    if valid is None:
        return [None] * levels, [None] * levels
    valids: list[Tensor | None] = [valid]
    shares: list[Tensor | None] = [None]
    for _ in range(levels - 1):
        share = F.avg_pool2d(valid.float(), 2)
        valid = share > 0
        valids.append(valid)
        shares.append(torch.where(valid, share, 1))
    return valids, shares
