"""Shapes of what the block ops give, for tracing."""

from __future__ import annotations

import torch
from torch import Tensor

from disk_ops.ops._dtypes import at_least_float32

_SIZE = 5  # of the convolution


def _fake_norm(x: Tensor, skip: Tensor | None, resample: str) -> Tensor:
    channels = x.shape[1] + (0 if skip is None else skip.shape[1])
    return x.new_empty((2, x.shape[0], channels), dtype=at_least_float32(x.dtype))


def _fake_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    skip: Tensor | None,
    norm: Tensor | None,
    slope: Tensor | None,
    resample: str,
) -> Tensor:
    size = (x.shape[0], weight.shape[0], *_size(x, resample))
    dtype = at_least_float32(x.dtype) if weight.shape[0] == 1 else x.dtype
    return torch.empty(size, dtype=dtype, device=x.device, memory_format=torch.channels_last)


def _fake_activation(
    x: Tensor, skip: Tensor | None, norm: Tensor | None, slope: Tensor | None, resample: str
) -> Tensor:
    channels = x.shape[1] + (0 if skip is None else skip.shape[1])
    size = (x.shape[0], channels, *_size(x, resample))
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _fake_input_backward(
    grad: Tensor, x: Tensor, skip: Tensor | None, norm: Tensor | None, slope: Tensor | None, resample: str
) -> tuple[Tensor, Tensor, Tensor]:
    def like(tensor: Tensor | None) -> Tensor:
        if tensor is None:
            return x.new_empty(0)
        return torch.empty(tensor.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)

    return like(x), like(skip), x.new_empty(0 if slope is None else len(slope))


def _fake_weight_backward(
    grad: Tensor, x: Tensor, skip: Tensor | None, norm: Tensor | None, slope: Tensor | None, resample: str
) -> Tensor:
    channels = x.shape[1] + (0 if skip is None else skip.shape[1])
    return x.new_empty((grad.shape[1], channels, _SIZE, _SIZE))


def _fake_patches(
    x: Tensor,
    keypoints: Tensor,
    skip: Tensor | None,
    norm: Tensor | None,
    slope: Tensor | None,
    resample: str,
) -> Tensor:
    channels = x.shape[1] + (0 if skip is None else skip.shape[1])
    flat = (keypoints.shape[0] * keypoints.shape[1], channels, _SIZE, _SIZE)
    patches = torch.empty(flat, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    return patches.view(keypoints.shape[0], keypoints.shape[1], channels, _SIZE, _SIZE)


def _size(x: Tensor, resample: str) -> tuple[int, int]:
    height, width = x.shape[2:]
    if resample == "pool":
        return height // 2, width // 2
    return (2 * height, 2 * width) if resample == "up" else (height, width)


torch.library.register_fake("disk_ops::block_norm", _fake_norm)
torch.library.register_fake("disk_ops::block_convolution", _fake_convolution)
torch.library.register_fake("disk_ops::block_patches", _fake_patches)
torch.library.register_fake("disk_ops::block_activation", _fake_activation)
torch.library.register_fake("disk_ops::_block_input_backward", _fake_input_backward)
torch.library.register_fake("disk_ops::_block_weight_backward", _fake_weight_backward)
