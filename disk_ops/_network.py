"""What a detector reads off its network: scores of all pixels, in float32 at least, and descriptors.

Scores are never rounded to a half type: that makes plateaus of them, which keep one pixel each and no order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from disk_ops.model import UNet
from disk_ops.ops import conv_block, describe
from disk_ops.ops._dtypes import at_least_float32


def maps(
    unet: nn.Module,
    images: Tensor,  # [B, C, H, W]
    valid: Tensor | None,  # [B, 1, H, W] bool
    desc_dim: int,
) -> tuple[Tensor, Tensor]:
    """Heatmap ``[B, 1, H, W]`` and descriptors ``[B, desc_dim, H, W]`` from images that fit the network."""
    if images.numel() == 0:
        size = images.shape[-2:]
        heatmap, dense = images.new_zeros(len(images), 1, *size), images.new_zeros(len(images), desc_dim, *size)
    elif isinstance(unet, UNet):
        heatmap, dense = unet.maps(images, valid)
    else:
        output = unet(images)
        heatmap, dense = output[:, desc_dim:], output[:, :desc_dim]
    check_channels(dense.shape[1] + heatmap.shape[1], desc_dim)
    if heatmap.shape[-2:] != images.shape[-2:]:
        raise ValueError(
            f"unet must keep the size of the images {list(images.shape[-2:])}, got {list(heatmap.shape[-2:])}"
        )
    return heatmap.to(at_least_float32(heatmap.dtype)), dense


def precise_heads(
    unet: UNet,
    images: Tensor,  # [B, C, H, W]
    valid: Tensor | None,  # [B, 1, H, W] bool
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """:meth:`UNet.heads`, the last convolution in the precision of its weights, whatever autocast says."""
    weight, bias = unet.last_convolution.weight, unet.last_convolution.bias
    assert bias is not None
    activation = unet.features(images, valid)
    with torch.autocast(images.device.type, enabled=False):
        precise = activation.to(weight.dtype)
        heatmap = conv_block(precise, weight[-1:], bias[-1:])

    def read(keypoints: Tensor) -> Tensor:
        with torch.autocast(images.device.type, enabled=False):
            return describe(precise, weight[:-1], bias[:-1], keypoints)

    return heatmap, read


def check_channels(channels: int, desc_dim: int) -> None:
    """Refuse networks that don't give descriptors and a heatmap."""
    if channels != desc_dim + 1:
        raise ValueError(f"unet must give desc_dim + 1 = {desc_dim + 1} channels, got {channels}")
