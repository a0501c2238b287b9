"""Image batches and their masks: checks, padding, sizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops.ops._arguments import check_tensor


def check_images(
    images: Tensor,  # [B, C, H, W]
    weight: Tensor | None,  # any parameter of the network
    channels: int,
) -> None:
    """Raise an error that names what is wrong with a batch of images."""
    check_tensor("images", images)
    if images.ndim != 4 or images.shape[1] not in (1, channels):
        wanted = " or ".join(map(str, sorted({1, channels})))
        raise ValueError(f"images must have shape [B, C, H, W] with C {wanted}, got {list(images.shape)}")
    if not images.is_floating_point():
        raise TypeError(f"images must be floating point in [0, 1], got {images.dtype}")
    if 0 in images.shape[2:]:
        raise ValueError(f"images must be at least 1×1 pixels, got {list(images.shape)}")
    if weight is None:
        return
    if images.device != weight.device:
        raise ValueError(f"images must be on the detector's device ({weight.device}), got {images.device}")
    converted = torch.is_autocast_enabled(images.device.type) and torch.float64 not in (images.dtype, weight.dtype)
    if images.dtype != weight.dtype and not converted:
        raise TypeError(f"images must be of the detector's dtype ({weight.dtype}), got {images.dtype}")


def check_sizes(
    images: Tensor,  # [B, C, H, W]
    multiple: int,
    hint: str = "",
) -> None:
    """Raise for sizes that the network can't take as they are."""
    if any(size % multiple for size in images.shape[-2:]):
        raise ValueError(f"images must have sizes divisible by {multiple}, got {list(images.shape[-2:])}{hint}")


def check_network_input(
    images: Tensor,  # [B, C, H, W]
    channels: int,
    multiple: int,
) -> None:
    """Raise for images that the network can't take as they are, where sizes are known numbers."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return
    check_tensor("images", images)
    if images.ndim != 4 or images.shape[1] != channels or 0 in images.shape[2:]:
        raise ValueError(f"images must have shape [B, {channels}, H, W] with H and W above 0, got {list(images.shape)}")
    check_sizes(images, multiple)


def repeat_channel(
    images: Tensor,  # [B, 1 or channels, H, W]
    channels: int,
) -> Tensor:
    """Repeat the channel of a grey image: ``[B, channels, H, W]``."""
    return images if images.shape[1] == channels else images.expand(-1, channels, -1, -1)


def pad_to_multiple(
    images: Tensor,  # [B, C, H, W]
    multiple: int,
) -> Tensor:
    """Pad with zeros (False) at the bottom and right."""
    bottom, right = (-images.shape[-2]) % multiple, (-images.shape[-1]) % multiple
    return F.pad(images, (0, right, 0, bottom)) if bottom or right else images


def as_mask(
    mask: Tensor,  # [B, 1, H, W]
    images: Tensor,  # [B, C, H, W]
    name: str = "mask",
) -> Tensor:
    """Return a checked mask as bool: True where it is True or above 0."""
    check_tensor(name, mask)
    expected = [images.shape[0], 1, *images.shape[2:]]
    if list(mask.shape) != expected:
        raise ValueError(f"{name} must have shape {expected} as images have, got {list(mask.shape)}")
    if mask.device != images.device:
        raise ValueError(f"{name} must be on the device of images ({images.device}), got {mask.device}")
    if mask.is_complex():
        raise TypeError(f"{name} must be bool or real, got {mask.dtype}")
    return mask if mask.dtype == torch.bool else mask > 0


def check_image_size(
    image_size: Tensor,  # [B, 2] (width, height)
    images: Tensor,  # [B, C, H, W]
) -> None:
    """Raise an error that names what is wrong with the sizes of the images of a padded batch."""
    batch, _, height, width = images.shape
    check_tensor("image_size", image_size)
    if list(image_size.shape) != [batch, 2]:
        raise ValueError(f"image_size must have shape [{batch}, 2] (width, height), got {list(image_size.shape)}")
    if image_size.is_floating_point() or image_size.is_complex() or image_size.dtype == torch.bool:
        raise TypeError(f"image_size must hold integers, got {image_size.dtype}")
    # Values can't be read where a call becomes one graph, and reading them from a GPU would have to wait for it: there,
    # sizes that are too large count as the largest.
    readable = image_size.device.type == "cpu" and not torch.compiler.is_compiling()
    if readable and bool(((image_size < 1) | (image_size > image_size.new_tensor([width, height]))).any()):
        raise ValueError(f"image_size must lie between 1 and {[width, height]}, got {image_size.tolist()}")


def crop_mask(
    image_size: Tensor,  # [B, 2] (width, height)
    images: Tensor,  # [B, C, H, W]
) -> Tensor:
    """Return which pixels of a padded batch belong to its images: ``[B, 1, H, W]`` bool."""
    check_image_size(image_size, images)
    height, width = images.shape[-2:]
    size = image_size.to(images.device, torch.int64, non_blocking=True)
    x, y = torch.arange(width, device=size.device), torch.arange(height, device=size.device)
    return ((y[:, None] < size[:, 1, None, None]) & (x < size[:, 0, None, None]))[:, None]


def valid_pixels(
    images: Tensor,  # [B, C, H, W]
    mask: Tensor | None,  # [B, 1, H, W]
    image_size: Tensor | None,  # [B, 2] (width, height)
) -> Tensor | None:
    """Return the pixels that features may come from, ``[B, 1, H, W]`` bool; None: all."""
    check_tensor("images", images)
    keep = None if mask is None else as_mask(mask, images)
    if image_size is None:
        return keep
    inside = crop_mask(image_size, images)
    return inside if keep is None else keep & inside
